package shard

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

// order gives a node an order to move rows, and waits for the end of that job.
func order(t *testing.T, n *Node, o tiering.TieringJob) *tiering.ColdWork {
	t.Helper()
	id, answers, err := n.OrderCold(t.Context(), o)
	mustDo(t, err)
	if id == "" || len(answers) == 0 {
		t.Fatalf("order %q, %+v", id, answers)
	}
	return endOf(t, n, id)
}

func endOf(t *testing.T, n *Node, id string) *tiering.ColdWork {
	t.Helper()
	// Each step is followed by a pause of seven times its length, which is long on a busy machine.
	for end := time.Now().Add(2 * eventuallyMax); ; time.Sleep(time.Millisecond) {
		if work := n.tiering.Queue.Report(); work != nil && work.ID == id && !work.Running {
			return work
		}
		if time.Now().After(end) {
			t.Fatal("the order has not ended")
		}
	}
}

// fillHot writes rows of old posts, which stay in memory.
func fillHot(t *testing.T, n *Node, ks *Keyspace) {
	t.Helper()
	ops := make([]engine.Op, coldTestRows)
	for i := range ops {
		ops[i] = addTo(coldID(uint64(i)), 0, 1)
	}
	mustWrite(t, n, ks, ops...)
}

func coldReportOf(t *testing.T, n *Node, keyspace string) (tiering.ColdReport, tiering.ColdKeyspace) {
	t.Helper()
	for _, r := range n.ColdReports(t.Context()) {
		for _, k := range r.Keyspaces {
			if k.Keyspace == keyspace {
				return r, k
			}
		}
	}
	t.Fatalf("no node tells of %s", keyspace)
	return tiering.ColdReport{}, tiering.ColdKeyspace{}
}

// Rows move to disk when an operator requests it, up to an id or an age, and the job is
// logged.
func TestColdOrders(t *testing.T) {
	t.Parallel()
	n := openColdNode(t, t.TempDir(), 1, 0) // no row moves by itself
	ks := n.Keyspace("posts")
	fillHot(t, n, ks)
	_, answers, err := n.OrderCold(t.Context(), tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "posts", OlderThan: 24 * time.Hour, DryRun: true})
	mustDo(t, err)
	if rows := answers["n1.0"].Rows; rows < coldTestRows/2 || rows >= coldTestRows {
		t.Errorf("%d rows are old", rows)
	}
	work := order(t, n, tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "posts", Before: coldID(coldTestRows / 2)})
	_, posts := coldReportOf(t, n, "posts")
	if work.Rows == 0 || work.Rows != posts.ColdRows || posts.ColdRows > coldTestRows/2 || posts.Generations != 1 || posts.Rows != coldTestRows {
		t.Errorf("below an id: %+v, %+v", work, posts)
	}
	order(t, n, tiering.TieringJob{Verb: tiering.ColdMigrate, OlderThan: 24 * time.Hour})
	r, posts := coldReportOf(t, n, "posts")
	if posts.ColdRows < coldTestRows/2 || r.Work.Failed != "" || posts.ColdBytes == 0 || r.DiskBytes == 0 {
		t.Errorf("older than a day: %+v, %+v", posts, r)
	}
	if again := order(t, n, tiering.TieringJob{Verb: tiering.ColdMigrate, OlderThan: 24 * time.Hour}); again.Rows > 0 {
		t.Errorf("again: %+v", again)
	}
	checkCold(t, n, ks, 1)
	if r, _ = coldReportOf(t, n, "posts"); r.Reads == 0 || r.ReadP50 <= 0 || r.ReadP99 < r.ReadP50 {
		t.Errorf("reads: %+v", r)
	}
	families, err := n.cfg.Metrics.(prometheus.Gatherer).Gather()
	mustDo(t, err)
	for _, f := range families {
		if f.GetName() == "countd_cold_read_seconds" {
			if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() < r.Reads || h.GetSampleSum() <= 0 || len(h.GetBucket()) != 19 {
				t.Errorf("%v, want %d reads", h, r.Reads)
			}
			return
		}
	}
	t.Error("no metric tells how long reads took")
}

// An invalid or impossible order starts nothing and returns the reason.
func TestColdOrdersThatAreRefused(t *testing.T) {
	n := openColdNode(t, t.TempDir(), 1, 0)
	fillHot(t, n, n.Keyspace("posts"))
	for name, test := range map[string]struct {
		order tiering.TieringJob
		field string
		err   error
	}{
		"no such keyspace":           {tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "songs"}, "", errs.ErrUnknownKeyspace},
		"rows of another kind":       {tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "unread", Before: 9}, "keyspace", nil},
		"ids without time":           {tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "users", OlderThan: time.Hour}, "older_than_seconds", nil},
		"rows that are old nowhere":  {tiering.TieringJob{Verb: tiering.ColdMigrate}, "older_than_seconds", nil},
		"the same, as a dry run too": {tiering.TieringJob{Verb: tiering.ColdMigrate, DryRun: true}, "older_than_seconds", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := n.OrderCold(t.Context(), test.order)
			var argument *errs.ArgumentError
			if errors.As(err, &argument); test.field != "" && (argument == nil || argument.Field != test.field) || test.err != nil && !errors.Is(err, test.err) {
				t.Errorf("%v", err)
			}
		})
	}
	refused := func(what string, o tiering.TieringJob) {
		t.Helper()
		var refused *tiering.ColdRefusedError
		if _, _, err := n.OrderCold(t.Context(), o); !errors.As(err, &refused) || refused.Node != "n1.0" {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a verb of a later program", tiering.TieringJob{Verb: "fold", Before: 9})
	holdHeadroom(n)
	n.headroom.DiskFull.Store(true)
	refused("a full disk", tiering.TieringJob{Verb: tiering.ColdMigrate, Before: 9})
	n.headroom.DiskFull.Store(false)
	id, _, err := n.OrderCold(t.Context(), tiering.TieringJob{Verb: tiering.ColdMigrate, Before: 9}) // the job waits for coldAskedQuiet first
	mustDo(t, err)
	refused("an order after another", tiering.TieringJob{Verb: tiering.ColdMigrate, Before: 1<<64 - 1})
	if again, _, err := n.OrderCold(t.Context(), tiering.TieringJob{Verb: tiering.ColdMigrate, Before: 9}); err != nil || again != id {
		t.Errorf("the same order again: %q, %v, first %q", again, err, id)
	}
	_, _, err = n.OrderCold(t.Context(), tiering.TieringJob{Verb: tiering.ColdStop})
	mustDo(t, err)
	if work := endOf(t, n, id); work.Rows > 0 {
		t.Errorf("an order that is stopped: %+v", work)
	}
}

// An order whose deadline passes before all nodes have answered starts on no node. A stop takes
// effect even if little work is left.
func TestColdOrderDeadline(t *testing.T) {
	t.Parallel()
	n := openColdNode(t, t.TempDir(), 1, 0)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: catalog.Node{
		Key: "n7.0", Name: "n7", State: catalog.NodeActive, ClusterAddr: "127.0.0.1:1", VersionMax: catalog.ClusterVersionMax,
	}}}))
	_, _, err := n.OrderCold(over, tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "posts", Before: 9})
	var silent *tiering.ColdSilentError
	if !errors.As(err, &silent) || !slices.Equal(silent.Nodes, []string{"n7"}) {
		t.Error(err)
	}
	if work := n.tiering.Queue.Report(); work != nil {
		t.Errorf("begun: %+v", work)
	}
	if _, answers, err := n.OrderCold(over, tiering.TieringJob{Verb: tiering.ColdStop}); err != nil || len(answers) != 1 {
		t.Errorf("a stop: %+v, %v", answers, err)
	}
}
