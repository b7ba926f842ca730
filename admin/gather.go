package admin

import (
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
		Digests:      []clientadmin.GroupDigests{},
		Version:      versionOf(known),
	}
	name := Names(known)
	leads, replicas := map[string]int{}, map[string]int{}
	for _, number := range slices.Sorted(maps.Keys(known.Groups)) {
		g := groupView{number: number, name: name, catalog: known, reports: reports}
		shown := g.show()
		view.Groups = append(view.Groups, shown)
		view.Digests = append(view.Digests, clientadmin.GroupDigests{ID: shown.ID, Keyspace: shown.Keyspace, Shard: shown.Shard, Replicas: g.digests()})
		leads[g.leader()]++
		for _, m := range g.members() {
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
			MemoryFull: report.MemoryFull, DiskFull: report.DiskFull, DiskHangs: report.DiskHangs, Insecure: report.Insecure, CertProblems: report.CertProblems,
			HTTPAddr: dialledHTTP(node), ClusterAddr: node.ClusterAddr, GossipAddr: node.GossipAddr,
		})
	}
	return view
}

// groupView is one group as the nodes report it.
type groupView struct {
	number  uint32
	name    NodeNames
	catalog *catalog.View
	reports map[string]shard.NodeReport
}

// replicas returns the reports of the group's replicas, by node key.
func (g *groupView) replicas() map[string]*shard.ReplicaReport {
	all := map[string]*shard.ReplicaReport{}
	for key, report := range g.reports {
		for i := range report.Replicas {
			if report.Replicas[i].ID == g.number {
				all[key] = &report.Replicas[i]
			}
		}
	}
	return all
}

// leader returns the key of the node that reports to lead, or "". If several do, it returns the
// one with the latest term.
func (g *groupView) leader() string {
	leader, term := "", uint64(0)
	for key, r := range g.replicas() {
		if r.Role == "leader" && r.Term > term {
			leader, term = key, r.Term
		}
	}
	return leader
}

// members returns the configuration that the leader reports. Without a leader it returns
// that of the replica with the highest commit index.
func (g *groupView) members() []shard.MemberStatus {
	all := g.replicas()
	if leader := all[g.leader()]; leader != nil {
		return leader.Members
	}
	var furthest *shard.ReplicaReport
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if r := all[key]; furthest == nil || r.CommitIndex > furthest.CommitIndex {
			furthest = r
		}
	}
	if furthest == nil {
		return nil
	}
	return furthest.Members
}

func (g *groupView) show() clientadmin.ClusterGroup {
	keyspace, shardNumber := groupOf(g.catalog, g.number)
	shown := clientadmin.ClusterGroup{
		ID: g.number, Keyspace: keyspace, Shard: shardNumber, Target: g.name.all(g.catalog.Groups[g.number].Target),
		Voters: []string{}, NonVoters: []string{}, Replicas: []clientadmin.Replica{},
	}
	var voters, others []string
	for _, m := range g.members() {
		if m.Voter {
			voters = append(voters, m.Key)
		} else {
			others = append(others, m.Key)
		}
	}
	shown.Voters, shown.NonVoters = g.name.all(voters), g.name.all(others)
	all := g.replicas()
	leader := all[g.leader()]
	if leader != nil {
		shown.Leader, shown.Term = g.name[g.leader()], leader.Term
		shown.Rows, shown.Bytes = leader.Rows, leader.Bytes
		shown.ColdRows, shown.ColdBytes = leader.ColdRows, leader.ColdBytes
		if m := leader.Misfit; m != nil {
			shown.Misfit = &clientadmin.Misfit{ID: client.ID(m.ID), Layout: m.Layout, Fits: m.Fits, Rows: uint64(m.Rows)}
		}
		shown.SealedRows, shown.SealedBytes = leader.SealedRows, leader.SealedBytes
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		r := all[key]
		replica := clientadmin.Replica{Node: g.name[key], ID: r.Replica, Role: r.Role, AppliedIndex: r.AppliedIndex, ColdDamaged: r.ColdDamaged}
		if leader != nil {
			replica.Lag = leader.AppliedIndex - min(leader.AppliedIndex, r.AppliedIndex)
		}
		shown.Replicas = append(shown.Replicas, replica)
	}
	return shown
}

// digests returns the digests that the group's replicas report.
func (g *groupView) digests() []clientadmin.ReplicaDigest {
	digests, all := []clientadmin.ReplicaDigest{}, g.replicas()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		r := all[key]
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

// versionOf returns the cluster version of a catalog.
func versionOf(v *catalog.View) clientadmin.ClusterVersion {
	return clientadmin.ClusterVersion{Version: v.ClusterVersion, Max: v.VersionMax(), Held: v.VersionHeld}
}

// groupOf returns the keyspace and the shard of a group.
func groupOf(view *catalog.View, number uint32) (keyspace string, shardNumber int) {
	for _, k := range view.Keyspaces {
		if number >= k.FirstGroup && number < k.FirstGroup+uint32(k.Shards) {
			return k.Name, int(number - k.FirstGroup)
		}
	}
	return "meta", 0
}
