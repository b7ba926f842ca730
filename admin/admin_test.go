package admin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

// exampleCatalog returns a catalog of nodes n1, n2 and n3, with the two shards of keyspace posts in
// groups 1 and 2. Two nodes have the name n2; one of them is leaving.
func exampleCatalog() *catalog.View {
	return &catalog.View{
		ClusterVersion: 1,
		Keyspaces:      map[string]catalog.Keyspace{"posts": {Name: "posts", Groups: []uint32{1, 2}}},
		Nodes: map[string]catalog.Node{
			"n1.a": {Key: "n1.a", Name: "n1", State: catalog.NodeActive, Zone: "z1", HTTPAddr: "0.0.0.0:7400", ClusterAddr: "10.0.0.1:7401", VersionMax: 2},
			"n2.b": {Key: "n2.b", Name: "n2", State: catalog.NodeLeaving, VersionMax: 1},
			"n2.c": {Key: "n2.c", Name: "n2", State: catalog.NodeActive, VersionMax: 3},
			"n3.d": {Key: "n3.d", Name: "n3", State: catalog.NodeDraining, VersionMax: 2},
		},
		Groups: map[uint32]catalog.Placement{
			1: {Target: []string{"n3.d", "n1.a", "n2.c"}},
			2: {Target: []string{"n1.a"}},
		},
	}
}

func TestNodesAreCalledByName(t *testing.T) {
	name := Names(exampleCatalog())
	for key, want := range map[string]string{"n1.a": "n1", "n2.b": "n2.b", "n2.c": "n2", "n3.d": "n3"} {
		if name[key] != want {
			t.Errorf("%s is called %q, want %q", key, name[key], want)
		}
	}
	if got := name.all([]string{"n3.d", "gone.e", "n1.a"}); !slices.Equal(got, []string{"gone.e", "n1", "n3"}) {
		t.Errorf("they are called %q", got)
	}
	if got := name.replaceKeys("n2.c has 4 replicas, n1.a has 2"); got != "n2 has 4 replicas, n1 has 2" {
		t.Errorf("told %q", got)
	}
}

func TestDialledHTTP(t *testing.T) {
	for name, test := range map[string]struct{ http, cluster, want string }{
		"an address":                  {"10.0.0.1:7400", "10.0.0.2:7401", "10.0.0.1:7400"},
		"a name":                      {"db1:7400", "10.0.0.2:7401", "db1:7400"},
		"every interface":             {"0.0.0.0:7400", "10.0.0.2:7401", "10.0.0.2:7400"},
		"every interface, IPv6":       {"[::]:7400", "[fd00::2]:7401", "[fd00::2]:7400"},
		"no host":                     {":7400", "db2:7401", "db2:7400"},
		"no cluster address to go by": {":7400", "", ":7400"},
		"no address":                  {"", "10.0.0.2:7401", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := dialledHTTP(catalog.Node{HTTPAddr: test.http, ClusterAddr: test.cluster}); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// replicaOf returns the report of a node about its replica of a group.
func replicaOf(group uint32, role string, term, applied uint64, members ...shard.MemberStatus) shard.ReplicaReport {
	return shard.ReplicaReport{GroupStatus: shard.GroupStatus{
		ID: group, Role: role, Term: term, AppliedIndex: applied, CommitIndex: applied, Members: members, Rows: applied * 10,
	}}
}

func voter(key string) shard.MemberStatus { return shard.MemberStatus{Key: key, Voter: true} }

func TestGather(t *testing.T) {
	members := []shard.MemberStatus{voter("n1.a"), voter("n2.c"), {Key: "n3.d"}}
	reports := map[string]shard.NodeReport{
		"n1.a": {Life: "l1", Disk: tiering.Usage{Full: true, NeededBytes: 9, HasBytes: 8}, OpsWritten: 7, IDsRead: 6, Replicas: []shard.ReplicaReport{
			replicaOf(1, "leader", 4, 50, voter("n1.a")), // n1 does not know yet that n2 leads in a later term
			replicaOf(2, "follower", 2, 9, voter("n1.a")),
		}},
		"n2.c": {Life: "l2", NotReady: "it starts", Replicas: []shard.ReplicaReport{replicaOf(1, "leader", 5, 60, members...)}},
	}
	reports["n1.a"].Replicas[0].ColdDamaged = true
	view := gather(exampleCatalog(), reports, "c1", func(key string) bool { return key == "n3.d" })

	if view.ClusterID != "c1" || view.Version != (clientadmin.ClusterVersion{Version: 1, Max: 1}) {
		t.Errorf("cluster %s, version %+v", view.ClusterID, view.Version)
	}
	nodes := map[string]clientadmin.ClusterNode{}
	for _, n := range view.Nodes {
		nodes[n.ID] = n
	}
	if n := nodes["n1"]; !n.Alive || !n.Answers || !n.DiskFull || n.Leads != 0 || n.Replicas != 2 || n.HTTPAddr != "10.0.0.1:7400" || n.DiskNeededBytes != 9 || n.DiskFreeBytes != 8 || n.OpsWritten != 7 || n.IDsRead != 6 || n.Life != "l1" {
		t.Errorf("n1 is %+v", n)
	}
	if n := nodes["n2"]; n.Key != "n2.c" || n.NotReady != "it starts" || n.Leads != 1 || n.State != "active" {
		t.Errorf("n2 is %+v", n)
	}
	if n := nodes["n2.b"]; n.Alive || n.Answers || n.State != "leaving" || n.Replicas != 0 {
		t.Errorf("the n2 that leaves is %+v", n)
	}
	if n := nodes["n3"]; !n.Alive || n.Answers || n.State != "draining" || n.Replicas != 1 {
		t.Errorf("n3, of which gossip hears alone, is %+v", n)
	}

	if len(view.Groups) != 2 {
		t.Fatalf("%d groups", len(view.Groups))
	}
	led, lost := view.Groups[0], view.Groups[1]
	if led.Keyspace != "posts" || led.Shard != 0 || led.Leader != "n2" || led.Term != 5 || led.Rows != 600 ||
		!slices.Equal(led.Target, []string{"n1", "n2", "n3"}) || !slices.Equal(led.Voters, []string{"n1", "n2"}) || !slices.Equal(led.NonVoters, []string{"n3"}) {
		t.Errorf("group 1 is %+v", led)
	}
	if len(led.Replicas) != 2 || led.Replicas[0].Node != "n1" || led.Replicas[0].Lag != 10 || led.Replicas[1].Lag != 0 ||
		!led.Replicas[0].ColdDamaged || led.Replicas[1].ColdDamaged {
		t.Errorf("its replicas are %+v", led.Replicas)
	}
	if lost.Shard != 1 || lost.Leader != "" || !slices.Equal(lost.Voters, []string{"n1"}) || lost.Rows != 0 || lost.Replicas[0].Lag != 0 {
		t.Errorf("group 2, without a leader, is %+v", lost)
	}
}

// The view shows the members that a voter reports, even if a non-voter that reports no members has
// a longer log. Digests contain the marks of all replicas.
func TestGatherMembersOfVoters(t *testing.T) {
	far := replicaOf(1, "follower", 4, 90)
	far.Digest, far.Marks = "00c0ffee", []raftfsm.Mark{{Index: 64, Digest: 255}}
	reports := map[string]shard.NodeReport{
		"n1.a": {Replicas: []shard.ReplicaReport{replicaOf(1, "follower", 4, 50, voter("n1.a"), shard.MemberStatus{Key: "n3.d"})}},
		"n3.d": {Replicas: []shard.ReplicaReport{far, replicaOf(7, "follower", 1, 1)}}, // the catalog does not have group 7
	}
	view := gather(exampleCatalog(), reports, "c1", func(string) bool { return true })
	if got := view.Groups[0]; !slices.Equal(got.Voters, []string{"n1"}) || !slices.Equal(got.NonVoters, []string{"n3"}) || len(got.Replicas) != 2 {
		t.Errorf("group 1 is %+v", got)
	}
	all := digests(exampleCatalog(), reports)
	if len(all) != 2 || all[0].Keyspace != "posts" || all[1].Shard != 1 || len(all[0].Replicas) != 2 {
		t.Fatalf("digests %+v", all)
	}
	if got := all[0].Replicas[1]; got.Node != "n3" || got.Digest != "00c0ffee" || len(got.Marks) != 1 || got.Marks[0].Digest != "00000000000000ff" {
		t.Errorf("the digest of n3 is %+v", got)
	}
}

// For a group without a leader, the view shows the members that the replica with the longest log
// reports. A group that no node reports has no members.
func TestGatherWithoutLeaders(t *testing.T) {
	reports := map[string]shard.NodeReport{
		"n1.a": {Replicas: []shard.ReplicaReport{replicaOf(1, "follower", 4, 50, voter("n1.a"))}},
		"n2.c": {Replicas: []shard.ReplicaReport{replicaOf(1, "candidate", 5, 51, voter("n1.a"), voter("n2.c"))}},
	}
	view := gather(exampleCatalog(), reports, "c1", func(string) bool { return false })
	if got := view.Groups[0]; got.Leader != "" || !slices.Equal(got.Voters, []string{"n1", "n2"}) {
		t.Errorf("group 1 is %+v", got)
	}
	if got := view.Groups[1]; got.Leader != "" || len(got.Voters)+len(got.Replicas) != 0 {
		t.Errorf("group 2 is %+v", got)
	}
}

// If the catalog's leader has no settings of backups, and another node has, nobody makes the backups: the view says so.
func TestGatherBackups(t *testing.T) {
	known := exampleCatalog()
	known.Groups[0] = catalog.Placement{Target: []string{"n1.a", "n2.c"}}
	leads := []shard.ReplicaReport{replicaOf(0, "leader", 4, 50, voter("n1.a"))}
	for name, test := range map[string]struct {
		leader, other shard.NodeReport
		want          string // a part of the leader's problem
	}{
		"no backups":       {},
		"backups of both":  {leader: shard.NodeReport{Backups: true}, other: shard.NodeReport{Backups: true}},
		"a problem":        {leader: shard.NodeReport{Backups: true, BackupProblem: "it failed"}, want: "it failed"},
		"another's":        {other: shard.NodeReport{Backups: true}, want: "because it has no --backup-to, unlike n2: give all"},
		"the leader alone": {leader: shard.NodeReport{Backups: true}},
	} {
		t.Run(name, func(t *testing.T) {
			test.leader.Replicas = leads
			view := gather(known, map[string]shard.NodeReport{"n1.a": test.leader, "n2.c": test.other}, "c1", func(string) bool { return true })
			for _, n := range view.Nodes {
				if got := n.BackupProblem; n.Key == "n1.a" && (got == "") != (test.want == "") || !strings.Contains(got, test.want) && n.Key == "n1.a" || n.Key != "n1.a" && got != "" {
					t.Errorf("%s: %q, want %q", n.Key, got, test.want)
				}
			}
		})
	}
}

func TestAdminOfANodeWithoutACluster(t *testing.T) {
	a := New(Config{
		Node:  func() (*shard.Node, error) { return nil, errs.ErrNoLeader },
		Alive: func(string) bool { return true },
	})
	_, viewed := a.View(context.Background())
	_, planned := a.Plan(context.Background())
	_, changed := a.Change(context.Background(), FinalizeChange{})
	_, opened := a.OpenSnapshot(context.Background(), 1)
	_, restored := a.RestoreShard(context.Background(), 1, strings.NewReader(""), RestoreOptions{})
	for what, err := range map[string]error{"view": viewed, "plan": planned, "change": changed, "open": opened, "restore": restored} {
		if !errors.Is(err, errs.ErrNoLeader) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestNodesAreFound(t *testing.T) {
	view := exampleCatalog()
	view.Nodes["n4.e"] = catalog.Node{Key: "n4.e", Name: "n4", State: catalog.NodeLeaving}
	view.Nodes["n4.f"] = catalog.Node{Key: "n4.f", Name: "n4", State: catalog.NodeLeaving}
	o := operation{catalog: view, alive: func(key string) bool { return key != "n2.c" }}
	for called, want := range map[string]string{"n1": "n1.a", "n1.a": "n1.a", "n2": "n2.c", "n2.b": "n2.b", "n4.f": "n4.f"} {
		if got, err := o.find(called); err != nil || got.Key != want {
			t.Errorf("%s is %s, %v; want %s", called, got.Key, err, want)
		}
	}
	if _, err := o.find("n9"); !errors.Is(err, ErrNoSuchNode) {
		t.Errorf("n9: %v", err)
	}
	var refused *catalog.RefusedError
	if _, err := o.find("n4"); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "give the key") {
		t.Errorf("n4, of which there are two: %v", err)
	}
	var argument *errs.ArgumentError
	if _, err := o.findIn("to", "n9"); !errors.As(err, &argument) || argument.Field != "to" {
		t.Errorf("n9 in a body: %v", err)
	}

	for key, want := range map[string]string{"n1.a": "", "n2.c": "n2 is dead", "n3.d": "n3 is draining", "n2.b": "n2 is leaving"} {
		err := o.takes(view.Nodes[key])
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v, want %q", key, err, want)
		}
	}
	if o.othersTake("n1.a") || !o.othersTake("n3.d") {
		t.Error("of the others, n1 alone is active and alive")
	}
}
