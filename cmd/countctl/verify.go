package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

const (
	// verifyWait is long enough for replicas that are written to to be seen at
	// one index, and for one that was away to catch up a little.
	verifyWait = 30 * time.Second
	// verifyEvery is how often verify --watch compares.
	verifyEvery = 5 * time.Second
	// placesKept bounds what is remembered of a group: the marks of some looks at
	// all its replicas.
	placesKept = 4096
)

// errDiffer is returned when replicas of one group differ.
var errDiffer = errors.New("replicas differ")

// verifyOutput is what verify prints as JSON.
type verifyOutput struct {
	Equal      bool         `json:"equal"` // all were compared, none differs
	Groups     int          `json:"groups"`
	Replicas   int          `json:"replicas"` // that equal another of their group
	Unseen     []string     `json:"unseen"`   // that could not be compared
	Difference []difference `json:"differences"`
}

// difference is two replicas that do not hold the same at the same index.
type difference struct {
	Group string `json:"group"`
	Index uint64 `json:"index"`
	One   string `json:"one"`
	Other string `json:"other"`
}

func (c *cli) verifyCommand() *cobra.Command {
	wait, every, watch := verifyWait, verifyEvery, false
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare what all replicas hold; exit 1 when any two differ or one cannot be compared",
		Long: `Compare what all replicas hold; exit 1 when any two differ or one cannot be compared.

Replicas of a group are compared by the digest of all their rows at one index of
their log. While they are written to it looks again until each was seen at an
index that another one was seen at.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, _, err := c.operate(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			for {
				out, err := verifyOnce(cmd.Context(), server, wait)
				if watch && cmd.Context().Err() != nil {
					return nil // that is how a watch ends
				}
				if err != nil {
					return err
				}
				if err := c.print(out, out.table); err != nil {
					return err
				}
				if err := out.verdict(); err != nil || !watch {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(every):
				}
			}
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long to look for an index that replicas have in common")
	cmd.Flags().BoolVar(&watch, "watch", false, "go on until two differ or you interrupt it")
	cmd.Flags().DurationVar(&every, "every", every, "with --watch, the pause between two comparisons")
	return cmd
}

// verifyOnce looks until all replicas are compared, two differ or the wait is
// over.
func verifyOnce(ctx context.Context, server *client.Client, wait time.Duration) (verifyOutput, error) {
	v := verification{seen: map[place]sighting{}, equal: map[string]bool{}}
	for end := time.Now().Add(wait); ; {
		groups, err := server.ClusterGroups(ctx)
		if err != nil {
			return verifyOutput{}, fmt.Errorf("cannot list the groups: %w", err)
		}
		digests, err := server.Digests(ctx)
		if err != nil {
			return verifyOutput{}, fmt.Errorf("cannot read the digests: %w", err)
		}
		v.add(digests)
		out := v.output(groups)
		if len(out.Difference) > 0 || len(out.Unseen) == 0 || time.Now().After(end) {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return verifyOutput{}, ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// verification is what was seen of replicas so far.
type verification struct {
	seen    map[place]sighting
	equal   map[string]bool // replicas, as group@node, that another one equals
	differs []difference
}

// place is a point in a group's log.
type place struct {
	group uint32
	index uint64
}

// sighting is what the first replica that was seen at a place held there.
type sighting struct{ node, digest string }

// add compares each digest with that which was seen at its place before.
func (v *verification) add(groups []client.GroupDigests) {
	if len(v.seen) > placesKept*max(1, len(groups)) {
		clear(v.seen) // what is compared stays compared
	}
	for _, g := range groups {
		name := groupName(client.ClusterGroup{Keyspace: g.Keyspace, Shard: g.Shard})
		for _, r := range g.Replicas {
			v.note(place{g.ID, r.AppliedIndex}, name, sighting{r.Node, r.Digest})
			for _, m := range r.Marks {
				v.note(place{g.ID, m.Index}, name, sighting{r.Node, m.Digest})
			}
		}
	}
}

func (v *verification) note(at place, name string, now sighting) {
	switch first, known := v.seen[at]; {
	case !known:
		v.seen[at] = now
	case first.digest != now.digest:
		v.differs = append(v.differs, difference{name, at.index, first.node, now.node})
	case first.node != now.node:
		v.equal[name+"@"+first.node], v.equal[name+"@"+now.node] = true, true
	}
}

// output holds what was seen against the members of the groups.
func (v *verification) output(groups []client.ClusterGroup) verifyOutput {
	out := verifyOutput{Groups: len(groups), Unseen: []string{}, Difference: append([]difference{}, v.differs...)}
	for _, g := range groups {
		members := slices.Concat(g.Voters, g.NonVoters)
		if len(members) == 0 {
			members = g.Target // nobody speaks for it
		}
		for _, node := range members {
			replica := groupName(g) + "@" + node
			switch {
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

// verdict is the error of what was found.
func (o verifyOutput) verdict() error {
	switch {
	case len(o.Difference) > 0:
		d := o.Difference[0]
		return fmt.Errorf("%w: %s at index %d on %s and %s; see the runbook", errDiffer, d.Group, d.Index, d.One, d.Other)
	case len(o.Unseen) > 0:
		return fmt.Errorf("%d replicas could not be compared, such as %s", len(o.Unseen), o.Unseen[0])
	}
	return nil
}

func (o verifyOutput) table(t *table) {
	t.row("GROUPS", "EQUAL REPLICAS", "NOT COMPARED", "DIFFERENT")
	t.row(o.Groups, o.Replicas, len(o.Unseen), len(o.Difference))
	for _, d := range o.Difference {
		t.row("differ", d.Group, fmt.Sprintf("index %d", d.Index), d.One+", "+d.Other)
	}
	for _, replica := range o.Unseen {
		t.row("not compared", replica, "", "")
	}
}
