package admin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
)

// gather joins the catalog with the reports of the nodes.
func gather(known *catalog.View, reports map[string]shard.NodeReport, clusterID string, alive func(string) bool) *View {
	view := &View{
		ClusterNodes: clientadmin.ClusterNodes{ClusterID: clusterID, Nodes: []clientadmin.ClusterNode{}},
		Groups:       []clientadmin.ClusterGroup{},
		Version:      versionOf(known),
	}
	name := Names(known)
	leads, replicas := map[string]int{}, map[string]int{}
	catalogLeader := ""
	for _, g := range groupViews(known, reports) {
		view.Groups = append(view.Groups, g.show())
		leads[g.leader]++
		if g.keyspace == catalogKeyspace {
			catalogLeader = g.leader
		}
		for _, m := range g.members {
			replicas[m.Key]++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known.Nodes)) {
		node := known.Nodes[key]
		report, answers := reports[key]
		view.Nodes = append(view.Nodes, clientadmin.ClusterNode{
			ID: name[key], Key: key, Zone: node.Zone, State: string(node.State),
			Alive: answers || alive(key), Answers: answers, NotReady: report.NotReady, Life: report.Life,
			Version: node.Version, VersionMax: node.VersionMax, Leads: leads[key], Replicas: replicas[key],
			MemoryFull: report.Memory.Full, DiskFull: report.Disk.Full, DiskHangs: report.DiskHangs, Insecure: report.Insecure, CertProblems: report.CertProblems, BackupProblem: report.BackupProblem,
			MemoryNeededBytes: report.Memory.NeededBytes, MemoryLimitBytes: report.Memory.HasBytes,
			DiskNeededBytes: report.Disk.NeededBytes, DiskFreeBytes: report.Disk.HasBytes,
			OpsWritten: report.OpsWritten, IDsRead: report.IDsRead,
			HTTPAddr: dialledHTTP(node), ClusterAddr: node.ClusterAddr, GossipAddr: node.GossipAddr,
		})
	}
	warnOfNoBackups(view, reports, catalogLeader)
	return view
}

// warnOfNoBackups sets BackupProblem of the catalog's leader if it is to make no backups, but other nodes would.
func warnOfNoBackups(view *View, reports map[string]shard.NodeReport, leader string) {
	if report, answers := reports[leader]; !answers || report.Backups {
		return
	}
	for _, other := range slices.Sorted(maps.Keys(reports)) {
		at := slices.IndexFunc(view.Nodes, func(n clientadmin.ClusterNode) bool { return n.Key == other })
		if !reports[other].Backups || at < 0 {
			continue
		}
		for i := range view.Nodes {
			if view.Nodes[i].Key == leader {
				view.Nodes[i].BackupProblem = fmt.Sprintf("it leads the catalog and makes no backups, because it has no --backup-to, unlike %s: give all nodes the same settings", view.Nodes[at].ID)
			}
		}
		return
	}
}

// digests joins the digests and marks of the nodes' reports.
func digests(known *catalog.View, reports map[string]shard.NodeReport) []clientadmin.GroupDigests {
	all := []clientadmin.GroupDigests{}
	for _, g := range groupViews(known, reports) {
		all = append(all, clientadmin.GroupDigests{ID: g.number, Keyspace: g.keyspace, Shard: g.shard, Replicas: g.digests()})
	}
	return all
}

// catalogKeyspace is the name of the catalog's group in place of a keyspace.
const catalogKeyspace = "meta"

// groupView is one group as the nodes report it.
type groupView struct {
	number   uint32
	keyspace string
	shard    int
	name     NodeNames
	catalog  *catalog.View
	replicas map[string]*shard.ReplicaReport // reports of the group's replicas, by node key
	// leader is the key of the node whose replica reports that it leads, or "". If several replicas
	// report this, the one with the latest term wins.
	leader string
	// members is the configuration that the leader reports. Without a leader, it is the
	// configuration that the replica with the highest commit index reports.
	members []shard.MemberStatus
}

// groupViews joins the nodes' reports, by group. The groups are ascending.
func groupViews(known *catalog.View, reports map[string]shard.NodeReport) []*groupView {
	name := Names(known)
	all, byNumber := []*groupView{}, map[uint32]*groupView{}
	for _, number := range slices.Sorted(maps.Keys(known.Groups)) {
		g := &groupView{number: number, keyspace: catalogKeyspace, name: name, catalog: known, replicas: map[string]*shard.ReplicaReport{}}
		all, byNumber[number] = append(all, g), g
	}
	for _, k := range known.Keyspaces {
		for shardNumber, number := range k.All() {
			if g, placed := byNumber[number]; placed {
				g.keyspace, g.shard = k.Name, shardNumber
			}
		}
	}
	for key, report := range reports {
		for i := range report.Replicas {
			if g, placed := byNumber[report.Replicas[i].ID]; placed {
				g.replicas[key] = &report.Replicas[i]
			}
		}
	}
	for _, g := range all {
		g.findLeader()
	}
	return all
}

// findLeader sets leader and members from the replicas' reports.
func (g *groupView) findLeader() {
	var leader, furthest *shard.ReplicaReport
	for _, key := range slices.Sorted(maps.Keys(g.replicas)) {
		r := g.replicas[key]
		if r.Role == "leader" && (leader == nil || r.Term > leader.Term) {
			g.leader, leader = key, r
		}
		if len(r.Members) > 0 && (furthest == nil || r.CommitIndex > furthest.CommitIndex) {
			furthest = r
		}
	}
	if known := cmp.Or(leader, furthest); known != nil {
		g.members = known.Members
	}
}

func (g *groupView) show() clientadmin.ClusterGroup {
	shown := clientadmin.ClusterGroup{
		ID: g.number, Keyspace: g.keyspace, Shard: g.shard, Target: g.name.all(g.catalog.Groups[g.number].Target),
		Replicas: []clientadmin.Replica{},
	}
	var voters, others []string
	for _, m := range g.members {
		if m.Voter {
			voters = append(voters, m.Key)
		} else {
			others = append(others, m.Key)
		}
	}
	shown.Voters, shown.NonVoters = g.name.all(voters), g.name.all(others)
	leader := g.replicas[g.leader]
	if leader != nil {
		shown.Leader, shown.Term = g.name[g.leader], leader.Term
		shown.Rows, shown.Bytes = leader.Rows, leader.Bytes
		shown.ColdRows, shown.ColdBytes = leader.ColdRows, leader.ColdBytes
		if m := leader.Misfit; m != nil {
			shown.Misfit = &clientadmin.Misfit{ID: client.Number(m.ID), Layout: m.Layout, Fits: m.Fits, Rows: uint64(m.Rows)}
		}
		shown.SealedRows, shown.SealedBytes = leader.SealedRows, leader.SealedBytes
	}
	for _, key := range slices.Sorted(maps.Keys(g.replicas)) {
		r := g.replicas[key]
		replica := clientadmin.Replica{Node: g.name[key], ID: r.Replica, Role: r.Role, AppliedIndex: r.AppliedIndex, ColdDamaged: r.ColdDamaged}
		if leader != nil {
			replica.Lag = leader.AppliedIndex - min(leader.AppliedIndex, r.AppliedIndex)
		}
		shown.Replicas = append(shown.Replicas, replica)
	}
	return shown
}

func (g *groupView) digests() []clientadmin.ReplicaDigest {
	digests := []clientadmin.ReplicaDigest{}
	for _, key := range slices.Sorted(maps.Keys(g.replicas)) {
		r := g.replicas[key]
		d := clientadmin.ReplicaDigest{Node: g.name[key], AppliedIndex: r.AppliedIndex, Digest: r.Digest, Marks: []clientadmin.DigestMark{}, Entries: []clientadmin.EntryMark{}}
		for _, m := range r.Marks {
			d.Marks = append(d.Marks, clientadmin.DigestMark{Index: m.Index, Digest: fmt.Sprintf("%016x", m.Digest)})
		}
		for _, e := range r.Entries {
			d.Entries = append(d.Entries, clientadmin.EntryMark{Index: e.Index, Term: e.Term, CRC: fmt.Sprintf("%08x", e.CRC)})
		}
		digests = append(digests, d)
	}
	return digests
}

func versionOf(v *catalog.View) clientadmin.ClusterVersion {
	return clientadmin.ClusterVersion{Version: v.ClusterVersion, Max: v.VersionMax(), Held: v.VersionHeld}
}
