package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

const (
	// verifyWait is enough time to see replicas at a common index during writes. It is also enough
	// time for a replica that has just restarted to apply some entries, so that the replica does
	// not count as stuck.
	verifyWait = 30 * time.Second
	// verifyEvery is the default pause between two comparisons of verify --watch.
	verifyEvery = 5 * time.Second
	// placesKept bounds the indexes that a verification remembers, per group on average. Above
	// that, it forgets all of them.
	placesKept = 4096
)

// errDiffer is returned if two replicas of a group differ.
var errDiffer = errors.New("replicas differ")

// verifyOutput is the JSON output of verify.
type verifyOutput struct {
	Equal    bool     `json:"equal"` // all replicas were compared and none differ
	Groups   int      `json:"groups"`
	Replicas int      `json:"replicas"` // number of replicas that equal another replica of their group and differ from no replica
	Unseen   []string `json:"unseen"`   // replicas that could not be compared

	Stuck      []stuckReplica `json:"stuck"` // those replicas in Unseen that apply no entries
	Difference []difference   `json:"differences"`
}

// difference describes two replicas of a group that applied different entries at an index, or have
// different rows after that index.
type difference struct {
	Group string `json:"group"`
	Index uint64 `json:"index"`
	One   string `json:"one"` // node
	Other string `json:"other"`
	// At least one of these is set if the entries differ. The other is nil if that replica applied
	// no entry at the index.
	OneEntry   *entryOutput `json:"one_entry,omitempty"`
	OtherEntry *entryOutput `json:"other_entry,omitempty"`
	// Both are set if the rows differ.
	OneDigest   string `json:"one_digest,omitempty"`
	OtherDigest string `json:"other_digest,omitempty"`
}

// entryOutput identifies the entry of a log at the index of a difference.
type entryOutput struct {
	Term uint64 `json:"term"`
	CRC  string `json:"crc"`
}

// sides describes the digests or the entries of the two replicas.
func (d difference) sides() string {
	if d.OneDigest != "" {
		return fmt.Sprintf("%s has digest %s, %s has digest %s", d.One, d.OneDigest, d.Other, d.OtherDigest)
	}
	return fmt.Sprintf("%s has %s, %s has %s", d.One, d.OneEntry, d.Other, d.OtherEntry)
}

func (e *entryOutput) String() string {
	if e == nil {
		return "no entry"
	}
	return fmt.Sprintf("term %d crc %s", e.Term, e.CRC)
}

// stuckReplica is a replica that applied no entry while verify ran, although another replica was
// ahead of it.
type stuckReplica struct {
	Replica string `json:"replica"` // such as posts/0@n1
	Index   uint64 `json:"index"`   // index of the last entry that the replica applied
	Ahead   string `json:"ahead"`   // node of the replica with the highest applied index
	AheadAt uint64 `json:"ahead_at"`
}

func verifyCommand(c *cli.CLI) *cobra.Command {
	wait, every, watch := verifyWait, verifyEvery, false
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare all replicas; exit 1 when any two differ or one cannot be compared",
		Long: `Compare all replicas; exit 1 if any two differ or one cannot be compared.

Replicas of a group are compared by the digest of all their rows at the same index of their
log. During writes it polls until it has seen each replica at an index at which it has also
seen another. It also compares the newest entries that they have applied, by term
and checksum. A replica that stays behind the others and applies nothing is listed as
stuck.`,
		RunE: c.OnCluster(func(ctx context.Context, server *client.Client, _ []admin.ClusterNode, _ []string) error {
			err := cli.Poll(ctx, every, func() (bool, error) {
				out, err := verifyOnce(ctx, server, wait)
				if watch && err != nil && ctx.Err() != nil {
					return false, ctx.Err() // an interrupt has ended the call; return only ctx's error
				}
				if err == nil {
					err = c.Print(out, out.table)
				}
				return !watch, cmp.Or(err, out.Verdict())
			})
			if watch && errors.Is(err, ctx.Err()) {
				return nil // the operator ended the watch
			}
			return err
		}),
	}
	cli.DurationFlag(cmd.Flags(), &wait, "wait", wait, "how long to search for an index that replicas have in common")
	cmd.Flags().BoolVar(&watch, "watch", false, "continue until two replicas differ or you interrupt it")
	cli.DurationFlag(cmd.Flags(), &every, "every", every, "with --watch, the pause between two comparisons")
	return cmd
}

// verifyOnce polls until all replicas are compared, two differ or wait has passed.
func verifyOnce(ctx context.Context, server *client.Client, wait time.Duration) (verifyOutput, error) {
	v := newVerification()
	var out verifyOutput
	end := time.Now().Add(wait)
	err := cli.Poll(ctx, cli.PollEvery, func() (bool, error) {
		groups, err := admin.New(server).ClusterGroups(ctx)
		if err != nil {
			return false, fmt.Errorf("cannot list the groups: %w", err)
		}
		digests, err := admin.New(server).Digests(ctx)
		if err != nil {
			return false, fmt.Errorf("cannot read the digests: %w", err)
		}
		v.add(digests)
		out = v.output(groups)
		late := time.Now().After(end)
		if late {
			out.Stuck = v.stuck(digests, out.Unseen)
		}
		return late || len(out.Difference) > 0 || len(out.Unseen) == 0, nil
	})
	return out, err
}

// verification holds the results of all polls so far.
type verification struct {
	seen    map[place]sighting
	equal   map[string]bool   // replicas, as group@node, that were equal to another replica
	behind  map[string]uint64 // by replica, as group@node: index at which it was first seen behind another replica
	differs []difference
}

func newVerification() verification {
	return verification{seen: map[place]sighting{}, equal: map[string]bool{}, behind: map[string]uint64{}}
}

// place is an index in the log of a group.
type place struct {
	group uint32
	index uint64
}

// sighting is the first replica seen at a place, and its digest there.
type sighting struct{ node, digest string }

// add adds the results of one poll. It compares each digest with the first digest seen at the same
// place. It also compares the entries of the replicas with each other.
func (v *verification) add(groups []admin.GroupDigests) {
	if len(v.seen) > placesKept*max(1, len(groups)) {
		clear(v.seen) // the results stay in v.equal and v.differs
	}
	for _, g := range groups {
		name := nameOfDigests(g)
		for i, one := range g.Replicas {
			for _, other := range g.Replicas[i+1:] {
				if d := compareEntries(one, other); d != nil {
					d.Group = name
					v.differs = append(v.differs, *d)
				}
			}
		}
		ahead := furthest(g)
		for _, r := range g.Replicas {
			replica := name + "@" + r.Node
			if _, known := v.behind[replica]; !known && r.AppliedIndex < ahead.AppliedIndex {
				v.behind[replica] = r.AppliedIndex
			}
			v.note(place{g.ID, r.AppliedIndex}, name, sighting{r.Node, r.Digest})
			for _, m := range r.Marks {
				v.note(place{g.ID, m.Index}, name, sighting{r.Node, m.Digest})
			}
		}
	}
}

func nameOfDigests(g admin.GroupDigests) string {
	return cli.GroupName(admin.ClusterGroup{Keyspace: g.Keyspace, Shard: g.Shard})
}

// furthest returns the replica with the highest applied index.
func furthest(g admin.GroupDigests) admin.ReplicaDigest {
	var far admin.ReplicaDigest
	for _, r := range g.Replicas {
		if far.Node == "" || r.AppliedIndex > far.AppliedIndex {
			far = r
		}
	}
	return far
}

// compareEntries returns the first difference between the entries of two replicas, or nil.
// It compares only the range of indexes that both replicas report.
func compareEntries(one, other admin.ReplicaDigest) *difference {
	a, b := one.Entries, other.Entries
	if len(a) == 0 || len(b) == 0 {
		return nil
	}
	from, to := max(a[0].Index, b[0].Index), min(a[len(a)-1].Index, b[len(b)-1].Index)
	found := map[uint64]*difference{} // both replicas' entries, by index
	note := func(entries []admin.EntryMark, set func(*difference, *entryOutput)) {
		for _, e := range entries {
			if e.Index < from || e.Index > to {
				continue
			}
			if found[e.Index] == nil {
				found[e.Index] = &difference{Index: e.Index, One: one.Node, Other: other.Node}
			}
			set(found[e.Index], &entryOutput{e.Term, e.CRC})
		}
	}
	note(a, func(d *difference, e *entryOutput) { d.OneEntry = e })
	note(b, func(d *difference, e *entryOutput) { d.OtherEntry = e })
	for _, index := range slices.Sorted(maps.Keys(found)) {
		if d := found[index]; d.OneEntry == nil || d.OtherEntry == nil || *d.OneEntry != *d.OtherEntry {
			return d
		}
	}
	return nil
}

func (v *verification) note(at place, name string, now sighting) {
	switch first, known := v.seen[at]; {
	case !known:
		v.seen[at] = now
	case first.digest != now.digest:
		v.differs = append(v.differs, difference{
			Group: name, Index: at.index, One: first.node, Other: now.node, OneDigest: first.digest, OtherDigest: now.digest,
		})
	case first.node != now.node:
		v.equal[name+"@"+first.node], v.equal[name+"@"+now.node] = true, true
	}
}

// stuck returns the replicas that are behind another one and have applied nothing since they were
// first seen behind. replicas has their names, as group@node.
func (v *verification) stuck(groups []admin.GroupDigests, replicas []string) []stuckReplica {
	found := []stuckReplica{}
	for _, g := range groups {
		ahead := furthest(g)
		for _, r := range g.Replicas {
			replica := nameOfDigests(g) + "@" + r.Node
			stood, behind := v.behind[replica]
			if behind && stood == r.AppliedIndex && r.AppliedIndex < ahead.AppliedIndex && slices.Contains(replicas, replica) {
				found = append(found, stuckReplica{Replica: replica, Index: r.AppliedIndex, Ahead: ahead.Node, AheadAt: ahead.AppliedIndex})
			}
		}
	}
	return found
}

// output returns the result so far for all members of the groups.
func (v *verification) output(groups []admin.ClusterGroup) verifyOutput {
	out := verifyOutput{
		Groups: len(groups), Unseen: []string{}, Stuck: []stuckReplica{}, Difference: append([]difference{}, v.differs...),
	}
	for _, g := range groups {
		members := slices.Concat(g.Voters, g.NonVoters)
		if len(members) == 0 {
			members = g.Target // no leader answers
		}
		for _, node := range members {
			replica := cli.GroupName(g) + "@" + node
			switch {
			case out.differs(cli.GroupName(g), node):
			case v.equal[replica]:
				out.Replicas++
			case len(members) > 1 || len(g.Replicas) == 0:
				out.Unseen = append(out.Unseen, replica)
			}
		}
	}
	out.Equal = len(out.Difference) == 0 && len(out.Unseen) == 0
	return out
}

// differs reports whether o has a difference of the group's replica on node.
func (o verifyOutput) differs(group, node string) bool {
	return slices.ContainsFunc(o.Difference, func(d difference) bool {
		return d.Group == group && (d.One == node || d.Other == node)
	})
}

// Verdict returns an error if replicas differ or could not be compared.
func (o verifyOutput) Verdict() error {
	switch {
	case len(o.Difference) > 0:
		d := o.Difference[0]
		return fmt.Errorf("%w: %s at index %d on %s and %s (%s); see the runbook", errDiffer, d.Group, d.Index, d.One, d.Other, d.sides())
	case len(o.Stuck) > 0:
		s := o.Stuck[0]
		return fmt.Errorf("%d replicas could not be compared, and %d of them apply nothing: %s stays at index %d, %s is at %d",
			len(o.Unseen), len(o.Stuck), s.Replica, s.Index, s.Ahead, s.AheadAt)
	case len(o.Unseen) > 0:
		return fmt.Errorf("%d replicas could not be compared, such as %s", len(o.Unseen), o.Unseen[0])
	}
	return nil
}

func (o verifyOutput) table(t *cli.Table) {
	t.Row("GROUPS", "EQUAL REPLICAS", "NOT COMPARED", "DIFFERENT")
	t.Row(o.Groups, o.Replicas, len(o.Unseen), len(o.Difference))
	for _, d := range o.Difference {
		t.Row("different", d.Group, fmt.Sprintf("index %d", d.Index), d.sides())
	}
	for _, s := range o.Stuck {
		t.Row("stuck", s.Replica, fmt.Sprintf("index %d", s.Index), fmt.Sprintf("%s is at index %d", s.Ahead, s.AheadAt))
	}
	for _, replica := range o.Unseen {
		if !slices.ContainsFunc(o.Stuck, func(s stuckReplica) bool { return s.Replica == replica }) {
			t.Row("not compared", replica, "", "")
		}
	}
}
