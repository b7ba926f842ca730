package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// fakeSnapshot is the snapshot that a fakeNode returns and accepts.
const fakeSnapshot = "a snapshot"

var fakeFacts = raftfsm.SnapshotFacts{Index: 40, Route: raftfsm.NewRoute(1, 1, false).Of(0), Rows: 3, Digest: 0x00c0ffee00c0ffee}

// trouble locks the fake and calls troubleLocked.
func (n *fakeNode) trouble() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.troubleLocked()
}

func (n *fakeNode) View(context.Context) (*admin.View, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	return &admin.View{
		ClusterNodes: clientadmin.ClusterNodes{ClusterID: "b6d3a1f0", ClusterName: "likes", Nodes: []clientadmin.ClusterNode{
			{ID: "n1", Key: "n1.5f3a9c01", Zone: "a", State: "active", Alive: true, Answers: true, Life: "8a1fd0c2aa01b3f7", Version: "1.2.3", VersionMax: 1,
				MemoryNeededBytes: 50 << 20, MemoryLimitBytes: 1 << 30, DiskNeededBytes: 1 << 30, DiskFreeBytes: 8 << 30, OpsWritten: 812, IDsRead: 4060,
				Leads: 2, Replicas: 2, DiskHangs: true, Insecure: true, JoinIgnored: true, CertProblems: []string{"n1.crt: expires in 9 days"}, BackupProblem: "there is no backup in /backups",
				HTTPAddr: "127.0.0.1:7400", ClusterAddr: "127.0.0.1:7401", GossipAddr: "127.0.0.1:7402"},
			{ID: "n2", Key: "n2.0b77e1d4", Zone: "b", State: "draining", Version: "1.2.3", VersionMax: 1, Replicas: 2,
				HTTPAddr: "127.0.0.1:7410", ClusterAddr: "127.0.0.1:7411", GossipAddr: "127.0.0.1:7412"},
		}},
		Groups: []clientadmin.ClusterGroup{{
			ID: 1, Keyspace: "posts", Shard: 0, Leader: "n1", Term: 2, Target: []string{"n1", "n2"}, Voters: []string{"n1"}, NonVoters: []string{"n2"},
			Misfit: &clientadmin.Misfit{ID: client.Number(9), Layout: "weibo", Fits: "none", Rows: 1}, Rows: 3, Bytes: 8192, Replicas: []clientadmin.Replica{
				{Node: "n1", ID: "n1.5f3a9c01#1", Role: "leader", AppliedIndex: 128},
				{Node: "n2", ID: "n2.77e0d412#4", Role: "follower", AppliedIndex: 100, Lag: 28, ColdDamaged: true},
			},
		}},
		Version: clientadmin.ClusterVersion{Version: 1, Max: 2, Held: true},
	}, nil
}

func (n *fakeNode) Digests(context.Context) ([]clientadmin.GroupDigests, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	return []clientadmin.GroupDigests{{ID: 1, Keyspace: "posts", Replicas: []clientadmin.ReplicaDigest{
		{Node: "n1", AppliedIndex: 128, Digest: "00c0ffee00c0ffee", Marks: []clientadmin.DigestMark{{Index: 64, Digest: "0000000000000001"}, {Index: 128, Digest: "00c0ffee00c0ffee"}},
			Entries: []clientadmin.EntryMark{{Index: 127, Term: 2, CRC: "00c0ffee"}, {Index: 128, Term: 2, CRC: "1234abcd"}}},
		{Node: "n2", AppliedIndex: 100, Digest: "0000000000000007", Marks: []clientadmin.DigestMark{{Index: 64, Digest: "0000000000000001"}}, Entries: []clientadmin.EntryMark{}},
	}}}, nil
}

func (n *fakeNode) Plan(context.Context) ([]clientadmin.PlanStep, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	group := uint32(1)
	return []clientadmin.PlanStep{
		{Step: "place", Group: &group, Name: "posts/0", Add: []string{"n3"}, Remove: []string{"n2"}, Reason: "n2 is leaving"},
		{Step: "transfer", Group: &group, Name: "posts/0", From: "n1", To: "n3", Reason: "n1 leads more than its share"},
		{Step: "set_node_state", Node: "n2", State: "leaving", Reason: "n2 was lost"},
		{Step: "raise_version", Version: 2, Reason: "all 2 nodes speak it"},
	}, nil
}

func (n *fakeNode) Change(_ context.Context, change admin.Change) (*clientadmin.Changed, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	switch c := change.(type) {
	case admin.NodeChange:
		if c.Node != "n2" {
			return nil, fmt.Errorf("%w: %q", admin.ErrNoSuchNode, c.Node)
		}
		return &clientadmin.Changed{Changed: c.State != catalog.NodeDraining, Node: &clientadmin.ChangedNode{ID: "n2", Key: "n2.0b77e1d4", State: string(c.State)}}, nil
	case admin.TransferChange:
		if c.Group != 1 {
			return nil, admin.ErrNoSuchGroup
		}
		if c.To != "n2" {
			return nil, &errs.ArgumentError{Field: "to", Problem: "no such node"}
		}
		return &clientadmin.Changed{Changed: true, Group: &clientadmin.ChangedGroup{ID: 1, Leader: "n2", Target: []string{"n1", "n2"}}}, nil
	case admin.MoveChange:
		if c.Group != 1 {
			return nil, admin.ErrNoSuchGroup
		}
		if c.From != "n2" {
			return nil, &catalog.RefusedError{Reason: fmt.Sprintf("group 1 is not to be on %s", c.From)}
		}
		return &clientadmin.Changed{Changed: true, Group: &clientadmin.ChangedGroup{ID: 1, Leader: "n1", Target: []string{"n1", c.To}}}, nil
	case admin.HoldChange:
		return &clientadmin.Changed{Changed: !c.Held, Version: &clientadmin.ClusterVersion{Version: 1, Max: 2, Held: c.Held}}, nil
	case admin.FinalizeChange:
		return &clientadmin.Changed{Changed: true, Version: &clientadmin.ClusterVersion{Version: 2, Max: 2}}, nil
	}
	panic(fmt.Sprintf("no such change: %T", change))
}

// fakeProgress is the progress of a growth.
var fakeProgress = catalog.Progress{To: 21, Split: 1, Since: "2026-03-01T12:00:00Z", Shards: []catalog.ShardProgress{
	{State: catalog.SplitBegun, Since: "2026-03-01T12:00:01Z"}, {Shard: 1, State: catalog.SplitWaits},
}}

func (n *fakeNode) Grow(_ context.Context, o admin.GrowOrder) (*clientadmin.Growth, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	g := &clientadmin.Growth{Keyspace: o.Keyspace, Shards: 7, To: 7, State: clientadmin.NotGrowing}
	switch {
	case o.Keyspace != "posts":
		return nil, errs.ErrUnknownKeyspace
	case o.From == 3:
		return nil, &catalog.RefusedError{Reason: "keyspace posts has 7 shards, not 3"}
	case o.DryRun:
		g.To, g.Rows, g.Estimated = 7*o.By, make([]uint64, 7*o.By), true
		g.Rows[0], g.Rows[2] = 3, 1
		g.Factors = []clientadmin.GrowthFactor{{By: o.By, To: g.To, Rows: g.Rows, Largest: 10.5}}
		g.Refused = []string{"the cluster's version is 1; growth needs 2"}
		g.Warnings = []string{"by 2, the largest shard would hold 10.50 times its even share of the rows"}
	case !o.Withdraw:
		g.To, g.State = 7*o.By, clientadmin.Growing
		g.Growing = &client.Growing{To: g.To, Split: fakeProgress.Split, Since: fakeProgress.Since}
		for _, s := range fakeProgress.Shards {
			g.Growing.Shards = append(g.Growing.Shards, client.GrowingShard{Shard: s.Shard, State: string(s.State), Since: s.Since})
		}
	}
	return g, nil
}

func (n *fakeNode) Cold(context.Context) ([]admin.ColdNode, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return []admin.ColdNode{
		{Node: "n1", Answers: true, ColdReport: &tiering.ColdReport{
			AfterSeconds: 15_552_000, DiskBytes: 52_000_000, CacheBytes: 33_554_432, CacheHits: 9000, Reads: 1000, ReadP50: 0.00028, ReadP99: 0.001792,
			Scrub: tiering.ColdScrub{EverySeconds: 604_800, Blocks: 12_000, Bytes: 48_000_000, PassBytes: 3_000_000, PassOf: 45_000_000, Passes: 1, LastPass: began},
			Keyspaces: []tiering.ColdKeyspace{
				{Keyspace: "posts", Rows: 10_400_000, MemoryBytes: 8_000_000, ColdRows: 10_000_000, ColdBytes: 45_000_000, Generations: 1000, DueRows: 30_000},
			},
			Work: &tiering.ColdWork{ID: "8a1fd0c2aa01b3f7", Verb: tiering.ColdMigrate, Keyspace: "posts", Began: began, Running: true, Rows: 160_000, Of: 400_000, Failed: "posts/3 has no leader"},
		}},
		{Node: "n2"},
	}, nil
}

func (n *fakeNode) OrderCold(_ context.Context, order tiering.TieringJob) (*clientadmin.ColdOrdered, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	switch order.Keyspace {
	case "songs":
		return nil, errs.ErrUnknownKeyspace
	case "users":
		if order.OlderThan > 0 {
			return nil, &errs.ArgumentError{Field: "older_than_seconds", Problem: "ids of users carry no time (--id-layout): give before"}
		}
		return nil, &catalog.RefusedError{Reason: "n1: its disk has no room"}
	}
	n1 := clientadmin.ColdOrderedNode{Node: "n1", Answers: true}
	if order.Verb == tiering.ColdMigrate {
		n1.Rows = 30_000
	}
	ordered := &clientadmin.ColdOrdered{ID: "8a1fd0c2aa01b3f7", Nodes: []clientadmin.ColdOrderedNode{n1, {Node: "n2"}}}
	if order.DryRun {
		ordered.ID = ""
		ordered.Nodes[1] = clientadmin.ColdOrderedNode{Node: "n2", Answers: true, Refused: "another job is running", Never: true}
	}
	return ordered, nil
}

func (n *fakeNode) OpenSnapshot(_ context.Context, group uint32) (*replica.Snapshot, error) {
	if err := n.trouble(); err != nil {
		return nil, err
	}
	switch group {
	case 0:
		return nil, shard.ErrNotBackedUp
	case 2:
		return nil, &admin.ElsewhereError{HTTPAddr: "127.0.0.1:7410"}
	}
	return &replica.Snapshot{
		ReadCloser: io.NopCloser(bytes.NewReader([]byte(fakeSnapshot))), Bytes: int64(len(fakeSnapshot)), SnapshotFacts: fakeFacts,
	}, nil
}

func (n *fakeNode) RestoreShard(_ context.Context, group uint32, stream io.Reader, o admin.RestoreOptions) (raftfsm.SnapshotFacts, error) {
	if err := n.trouble(); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	text, err := io.ReadAll(stream)
	switch {
	case err != nil:
		return raftfsm.SnapshotFacts{}, errors.Join(admin.ErrBadSnapshot, err)
	case group == 0:
		return raftfsm.SnapshotFacts{}, shard.ErrNotBackedUp
	case group == 2 && !o.Force:
		return raftfsm.SnapshotFacts{}, admin.ErrShardNotEmpty
	case slices.Contains(o.Columns, "nope"):
		return raftfsm.SnapshotFacts{}, &errs.ArgumentError{Field: "columns", Problem: `keyspace posts has no column "nope"`}
	case len(bytes.ReplaceAll(text, []byte(fakeSnapshot), nil)) > 0:
		return raftfsm.SnapshotFacts{}, admin.ErrBadSnapshot
	}
	facts := fakeFacts
	if o.Force {
		facts.SetBack = 2
	}
	return facts, nil
}
