package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/docs"
)

const (
	// status warns of a replica that is more than lagWarned entries behind. A follower that only
	// waits for its disk is less than a hundred entries behind.
	lagWarned = 1000
	// status warns of a shard with more than twice its share of the rows, but only if it has at
	// least unevenRowsMin rows. Fewer rows can be uneven by chance.
	unevenRowsMin = 10_000
	// votersWanted is the number of voters of a group if there are enough nodes. Three is the
	// smallest number that tolerates the loss of one.
	votersWanted = 3
)

// warning describes a state that an operator should check. The runbook explains what to do about
// each code.
type warning struct {
	Code string `json:"code"`
	Text string `json:"text"`
	Run  string `json:"run"` // the command to run first

	node, group, keyspace string // subjects of the warning
	plural                string // text that follows the subjects if several nodes or groups have the warning, such as "are dead"
}

// commandOf returns the first command in the runbook's section of the warning's code, with the
// warning's subjects. So an operator who reads only the runbook runs the same command.
func commandOf(w warning) string {
	_, section, _ := strings.Cut(string(docs.Operating), "\n### `"+w.Code+"`\n\n    ")
	command, _, _ := strings.Cut(section, "\n")
	return strings.NewReplacer("NODE", w.node, "KEYSPACE", w.keyspace).Replace(command)
}

type findings []warning

// add adds a warning with its command.
func (f *findings) add(w warning) {
	w.Run = commandOf(w)
	*f = append(*f, w)
}

func (f *findings) warn(code, format string, args ...any) {
	f.add(warning{Code: code, Text: fmt.Sprintf(format, args...)})
}

func (f *findings) keyspace(code, name, format string, args ...any) {
	f.add(warning{Code: code, Text: fmt.Sprintf(format, args...), keyspace: name})
}

// node adds a warning about a node. plural is the text if several nodes have the same warning; "" for warnings
// whose texts always differ.
func (f *findings) node(code, id, plural, format string, args ...any) {
	f.add(warning{Code: code, Text: fmt.Sprintf(format, args...), node: id, plural: plural})
}

// group adds a warning about a group. plural is the text if several groups have the same warning.
func (f *findings) group(code string, g admin.ClusterGroup, plural, format string, args ...any) {
	f.replica(code, g, "", plural, format, args...)
}

// replica adds a warning about the replica of a group on a node; "" for all its replicas.
func (f *findings) replica(code string, g admin.ClusterGroup, node, plural, format string, args ...any) {
	f.add(warning{Code: code, Text: cli.GroupName(g) + fmt.Sprintf(format, args...), group: cli.GroupName(g), node: node, plural: plural})
}

func warningsOf(nodes []admin.ClusterNode, groups []admin.ClusterGroup, digests []admin.GroupDigests, version admin.ClusterVersion) findings {
	found := findings{}
	dead := map[string]bool{}
	staying := 0
	for _, n := range nodes {
		dead[n.ID] = !n.Alive
		if n.State != "leaving" {
			staying++
		}
		warnOfNode(n, &found)
	}
	if bare := slices.DeleteFunc(slices.Clone(nodes), func(n admin.ClusterNode) bool { return n.Zone != "" }); len(bare) > 0 && len(bare) < len(nodes) {
		found.node("zones_mixed", bare[0].ID, "", "%d of %d nodes have no zone, such as %s: they count as one zone together", len(bare), len(nodes), bare[0].ID)
	}
	for _, g := range groups {
		warnOfGroup(g, dead, min(votersWanted, staying), &found)
	}
	warnOfDifferences(digests, &found)
	warnOfSkew(groups, &found)
	warnOfMisfits(groups, &found)
	switch {
	case version.Held:
		found.warn("version_held", "the cluster version is held at %d, the nodes support %d", version.Version, version.Max)
	case slices.ContainsFunc(nodes, func(n admin.ClusterNode) bool { return n.Version != nodes[0].Version }):
		found.warn("versions_differ", "the nodes run programs of different versions")
	}
	return found
}

func warnOfNode(n admin.ClusterNode, found *findings) {
	switch condition(n) {
	case "dead":
		found.node("node_dead", n.ID, "are dead: no other node hears of them", "%s is dead: no other node hears of it; it holds %d replicas", n.ID, n.Replicas)
	case "silent":
		found.node("node_silent", n.ID, "did not answer within a second, though they are not known to be dead", "%s did not answer within a second, though it is not known to be dead", n.ID)
	case "not ready":
		found.node("node_not_ready", n.ID, "are not ready: "+n.NotReady, "%s is not ready: %s", n.ID, n.NotReady)
	}
	switch n.State {
	case "draining":
		found.node("node_draining", n.ID, "are drained", "%s is drained", n.ID)
	case "leaving":
		found.node("node_leaving", n.ID, "are leaving", "%s is leaving; it holds %d replicas", n.ID, n.Replicas)
	}
	if n.JoinIgnored {
		found.node("join_ignored", n.ID, "", "%s is the only node of its cluster: it ignores --join and --bootstrap-expect; to join another cluster it needs a new data directory", n.ID)
	}
	if n.Insecure {
		found.node("insecure", n.ID, "listen beyond loopback without TLS or authentication, by --insecure",
			"%s listens beyond loopback without TLS or authentication, by --insecure", n.ID)
	}
	for _, problem := range n.CertProblems {
		found.node("certificate", n.ID, "", "%s: %s", n.ID, problem)
	}
	if n.BackupProblem != "" {
		found.node("backup", n.ID, "", "%s: %s", n.ID, n.BackupProblem)
	}
	if n.MemoryFull {
		found.node("memory_full", n.ID, "are at their memory limit and take no new rows", "%s is at its memory limit and takes no new rows", n.ID)
	}
	if n.DiskHangs {
		found.node("disk_hangs", n.ID, "have disks that hang or are full", "the disk of %s hangs or is full: a write of its log has not ended for over a second", n.ID)
	}
	if n.DiskFull {
		found.node("disk_full", n.ID, "have disks at their reserve and take no writes", "the disk of %s is at its reserve and takes no writes", n.ID)
	}
}

func warnOfGroup(g admin.ClusterGroup, dead map[string]bool, wanted int, found *findings) {
	alive := slices.DeleteFunc(slices.Clone(g.Voters), func(name string) bool { return dead[name] })
	gone := slices.DeleteFunc(slices.Sorted(slices.Values(g.Voters)), func(name string) bool { return !dead[name] })
	lost := allDead(g, dead)
	switch {
	case lost:
		found.group("group_no_leader", g, "have all replicas on dead nodes "+strings.Join(gone, ", "), ": all its replicas are on dead nodes %s", strings.Join(g.Voters, ", "))
	case g.Leader == "":
		found.group("group_no_leader", g, fmt.Sprintf("have no leader; %d of %d voters are alive", len(alive), len(g.Voters)),
			" has no leader; %d of its %d voters are alive", len(alive), len(g.Voters))
	}
	switch {
	case lost: // such a group already has the warning group_no_leader
	case len(alive) < len(g.Voters):
		found.group("group_degraded", g, fmt.Sprintf("have %d of %d voters alive: %s", len(alive), len(g.Voters), areDead(gone)),
			" has %d of its %d voters alive", len(alive), len(g.Voters))
	case len(g.Target) < wanted:
		found.group("group_few_voters", g, fmt.Sprintf("are to have %d voters, there are nodes for %d", len(g.Target), wanted),
			" is to have %d voters, there are nodes for %d", len(g.Target), wanted)
	case !sameNames(g.Voters, g.Target):
		found.group("group_moving", g, "are being moved", " has voters %s and is to have %s", strings.Join(g.Voters, ","), strings.Join(g.Target, ","))
	}
	for _, r := range g.Replicas {
		if r.Lag > lagWarned {
			found.replica("replica_lags", g, r.Node, fmt.Sprintf("are more than %s entries behind on %s", cli.Grouped(lagWarned), r.Node),
				" on %s is %s entries behind", r.Node, cli.Grouped(r.Lag))
		}
		if r.ColdDamaged {
			found.replica("cold_damaged", g, r.Node, "have cold rows on "+r.Node+" that cannot be read", " on %s has cold rows that cannot be read", r.Node)
		}
	}
}

// warnOfDifferences adds one warning for each group whose replicas differ. digests is the result of
// a single read. Such a read may miss a difference, whereas verify polls until all replicas are
// compared.
func warnOfDifferences(digests []admin.GroupDigests, found *findings) {
	v := newVerification()
	v.add(digests)
	warned := map[string]bool{}
	for _, d := range v.differs {
		if !warned[d.Group] {
			found.add(warning{
				Code: "replicas_differ", Text: fmt.Sprintf("%s differs at index %d: %s", d.Group, d.Index, d.sides()),
				group: d.Group, plural: "have replicas that differ",
			})
		}
		warned[d.Group] = true
	}
}

// status warns of a keyspace if at least 1/misfitShare of its rows have an id that does not fit the
// layout. Fewer such rows cost little memory, and another layout would fit the other rows less
// well.
const misfitShare = 10 // a tenth

// warnOfMisfits warns of a keyspace if many of its ids do not fit its layout. Rows with such ids
// never move out of memory.
func warnOfMisfits(groups []admin.ClusterGroup, found *findings) {
	rows, misfits, worst := map[string]uint64{}, map[string]uint64{}, map[string]*admin.Misfit{}
	for _, g := range groups {
		rows[g.Keyspace] += g.Rows
		if m := g.Misfit; m != nil {
			misfits[g.Keyspace] += m.Rows
			if worst[g.Keyspace] == nil || m.Rows > worst[g.Keyspace].Rows {
				worst[g.Keyspace] = m
			}
		}
	}
	for _, keyspace := range slices.Sorted(maps.Keys(worst)) {
		if m := worst[keyspace]; m.Rows > 0 && misfits[keyspace]*misfitShare >= rows[keyspace] {
			found.keyspace("id_layout_misfit", keyspace, "%s rows of %s, as %s, are not of layout %s; %s",
				cli.Grouped(misfits[keyspace]), keyspace, m.ID, m.Layout, misfitAdvice(keyspace, m))
		}
	}
}

// misfitAdvice returns the advice for a misfit: the layout that fits more rows of the keyspace, if
// there is one.
func misfitAdvice(keyspace string, m *admin.Misfit) string {
	if m.Fits == "" {
		return "no layout with a name fits more of the rows"
	}
	return fmt.Sprintf("start the nodes with --id-layout %s=%s", keyspace, m.Fits)
}

// warnOfSkew warns of a keyspace if one shard holds more than twice its share of the rows. The load
// of one shard cannot be divided between nodes.
func warnOfSkew(groups []admin.ClusterGroup, found *findings) {
	rows, shards, fullest := map[string]uint64{}, map[string]uint64{}, map[string]admin.ClusterGroup{}
	for _, g := range groups {
		rows[g.Keyspace] += g.Rows
		shards[g.Keyspace]++
		if g.Rows > fullest[g.Keyspace].Rows {
			fullest[g.Keyspace] = g
		}
	}
	for _, keyspace := range slices.Sorted(maps.Keys(fullest)) {
		g := fullest[keyspace]
		if g.Rows >= unevenRowsMin && g.Rows*shards[keyspace] > 2*rows[keyspace] {
			found.keyspace("shards_uneven", keyspace, "%s holds %s of the %s rows of %s, more than twice its share of %d shards",
				cli.GroupName(g), cli.Grouped(g.Rows), cli.Grouped(rows[keyspace]), keyspace, shards[keyspace])
		}
	}
}

// areDead returns a text such as "n1 is dead".
func areDead(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0] + " is dead"
	}
	return few(nodes) + " are dead"
}

// allDead reports whether all replicas of a group are on dead nodes.
func allDead(g admin.ClusterGroup, dead map[string]bool) bool {
	members := slices.Concat(g.Voters, g.NonVoters)
	return len(g.Voters) > 0 && !slices.ContainsFunc(members, func(name string) bool { return !dead[name] })
}

// limitWarned is the part of a limit of a keyspace from which status warns, in percent.
const limitWarned = 90

// warningsOfLimits warns of keyspaces with a shard near its share of a limit.
func warningsOfLimits(keyspaces []client.Keyspace, groups []admin.ClusterGroup) (found findings) {
	for _, k := range keyspaces {
		of := slices.DeleteFunc(slices.Clone(groups), func(g admin.ClusterGroup) bool { return g.Keyspace != k.Name })
		for _, l := range []struct {
			limit uint64
			unit  string
			has   func(g admin.ClusterGroup) uint64
		}{
			{k.Limits.Rows, "rows", func(g admin.ClusterGroup) uint64 { return g.Rows }},
			{k.Limits.Bytes, "bytes of memory", func(g admin.ClusterGroup) uint64 { return g.Bytes }},
		} {
			sum, fullest := uint64(0), uint64(0)
			for _, g := range of {
				sum, fullest = sum+l.has(g), max(fullest, l.has(g))
			}
			if shards := float64(len(of)); l.limit > 0 && float64(fullest)*shards*100 >= float64(l.limit)*limitWarned {
				found.keyspace("keyspace_limit", k.Name, "%s has %s of at most %s %s, the fullest of its %s %s",
					k.Name, cli.Grouped(sum), cli.Grouped(l.limit), l.unit, cli.Counted(len(of), "shard"), cli.Grouped(fullest))
			}
		}
	}
	return found
}

// growing adds the warning about a keyspace that grows.
func (f *findings) growing(k client.Keyspace) {
	f.keyspace("keyspace_growing", k.Name, "%s", cli.GrowingText(k))
}
