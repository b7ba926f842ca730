package admin

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/replica"
)

// BenchmarkGather measures the status of a cluster of 30 keyspaces of 27 shards: the bytes of the
// reports of all nodes, and the time to decode and join them. Reports have marks only if digests
// are requested.
func BenchmarkGather(b *testing.B) {
	for _, nodes := range []int{3, 100, 500} {
		for _, marks := range []bool{false, true} {
			known, reports := largeCluster(nodes, marks)
			bytes, encoded := 0, map[string][]byte{}
			for key, r := range reports {
				encoded[key], _ = json.Marshal(r)
				bytes += len(encoded[key])
			}
			b.Run(fmt.Sprintf("nodes=%d/marks=%v", nodes, marks), func(b *testing.B) {
				for b.Loop() {
					got := map[string]shard.NodeReport{}
					for key, body := range encoded {
						var r shard.NodeReport
						if err := json.Unmarshal(body, &r); err != nil {
							b.Fatal(err)
						}
						got[key] = r
					}
					if marks {
						digests(known, got)
					} else {
						gather(known, got, "c", func(string) bool { return true })
					}
				}
				b.ReportMetric(float64(bytes), "B")
			})
		}
	}
}

// largeCluster returns a catalog and the reports of its nodes. Groups 0 and 1 have all nodes as members.
func largeCluster(nodes int, marks bool) (*catalog.View, map[string]shard.NodeReport) {
	known := &catalog.View{ClusterVersion: 1, Keyspaces: map[string]catalog.Keyspace{}, Nodes: map[string]catalog.Node{}, Groups: map[uint32]catalog.Placement{}}
	key := func(i int) string { return fmt.Sprintf("countd-%d.%08x", i%nodes, i%nodes) }
	reports := map[string]shard.NodeReport{}
	var all []shard.MemberStatus
	for i := range nodes {
		name := fmt.Sprintf("countd-%d", i)
		known.Nodes[key(i)] = catalog.Node{Key: key(i), Name: name, State: catalog.NodeActive, VersionMax: 1}
		all = append(all, shard.MemberStatus{Node: name, Key: key(i), Replica: key(i) + "#1", Voter: i < 3})
		reports[key(i)] = shard.NodeReport{Life: "0123456789abcdef"}
	}
	report := func(i int, group uint32, keyspace string, members ...shard.MemberStatus) {
		r := replicaOf(group, "follower", 7, 1_000_000, members...)
		r.Keyspace, r.Replica, r.Leader, r.Digest = keyspace, key(i)+"#1", "countd-0", "0123456789abcdef"
		if marks {
			r.Marks = []raftfsm.Mark{{Index: 1_000_000, Digest: 1 << 63}}
			for m := range uint32(128) {
				r.Entries = append(r.Entries, replica.EntryMark{Index: 1_000_000 + uint64(m), Term: 7, CRC: 1<<31 + m})
			}
		}
		node := reports[key(i)]
		node.Replicas = append(node.Replicas, r)
		reports[key(i)] = node
	}
	for g := range uint32(2) {
		known.Groups[g] = catalog.Placement{Target: []string{key(0), key(1), key(2)}}
		for i := range nodes {
			if i < 3 {
				report(i, g, "meta", all...)
			} else {
				report(i, g, "meta") // a non-voter
			}
		}
	}
	for k := range 30 {
		name := fmt.Sprintf("keyspace-%d", k)
		var groups []uint32
		for s := range 27 {
			g := 2 + k*27 + s
			groups = append(groups, uint32(g))
			target := []string{key(3 * g), key(3*g + 1), key(3*g + 2)}
			known.Groups[uint32(g)] = catalog.Placement{Target: target}
			for i := range target {
				report(3*g+i, uint32(g), name, all[3*g%nodes], all[(3*g+1)%nodes], all[(3*g+2)%nodes])
			}
		}
		known.Keyspaces[name] = catalog.Keyspace{Name: name, Groups: groups}
	}
	return known, reports
}
