package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	stormWriters = 3
	stormOps     = 1000 // number of ops of a request
	stormLeast   = 40   // least number of requests of a writer, even if the faults end sooner
	stormPace    = 200 * time.Millisecond
	stormIDs     = 1 << 20
	stormSkew    = 1.1
	stormSweep   = 10_000 // number of ids that a writer's first request increments by 1: more than the list of a shard holds
	stormFirst   = 4467107636950632
	hotRows      = 100
)

// TestClusterHot counts a Zipf storm while leaders are killed with kill -9, give up their shards
// and restart. Meanwhile readers read each node's rankings. Afterwards, for each of two columns,
//
//  1. each node returns the 100 hottest ids of the hour and of the day. Their gains are correct
//     within their stated errors, and no other id gained more than the bound that the node states;
//  2. this bound is below the gain of the 10th id, although the lists could not keep all ids;
//  3. the nodes' answers for one window are equal;
//  4. each node has the 100 largest counts, exactly and in order.
func TestClusterHot(t *testing.T) {
	long(t)
	beside(t)
	rounds := short(1, 6)
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{LogStore: store})
			s := startZipf(t, c)
			for range rounds {
				stormFaults(t, c)
			}
			exact := s.end()
			c.AwaitReady(c.Nodes()...)
			c.AwaitAgreement(c.Nodes()...)
			for _, column := range []string{"like", "view"} {
				checkHottest(t, c, column, exact[column])
				checkTop(t, c, column, exact[column])
			}
		})
	}
}

// stormFaults kills a leader that has just taken snapshots for a backup, restarts it, kills it again, and makes
// another leader give up all its shards.
func stormFaults(t *testing.T, c *proctest.Cluster) {
	victim, _ := c.LeaderOfMost()
	victim.MustCtl("backup", filepath.Join(t.TempDir(), "backup"))
	victim.Kill()
	time.Sleep(500 * time.Millisecond) // in this time, groups may elect other leaders
	victim.StartReady()
	victim.Stop()
	victim.Start()
	c.AwaitReady(victim)
	victim.Kill()
	victim.Start()
	c.AwaitReady(victim)
	c.AwaitVoters(3)
	leader, _ := c.LeaderOfMost()
	at := c.Others(leader)[0]
	ctl[ctlNode](t, at, "node", "drain", leader.Name)
	ctl[ctlNode](t, at, "node", "undrain", leader.Name)
}

// counts are the sums of the increments, by id.
type counts map[client.ID]int64

// zipfStorm is the load of TestClusterHot: several writers, and a reader for each node.
type zipfStorm struct {
	t      *testing.T
	cancel context.CancelFunc
	work   *errgroup.Group
	gained []map[string]counts // for each writer, the counts of its increments by column
}

func startZipf(t *testing.T, c *proctest.Cluster) *zipfStorm {
	ctx, cancel := context.WithCancel(t.Context())
	s := &zipfStorm{t: t, cancel: cancel, work: &errgroup.Group{}}
	t.Cleanup(func() { cancel(); _ = s.work.Wait() })
	db := dialNodes(t, c.Nodes()...)
	for range stormWriters {
		own := map[string]counts{"like": {}, "view": {}}
		s.gained = append(s.gained, own)
		s.work.Go(func() error { return stormWrite(ctx, db, own) })
	}
	for _, n := range c.Nodes() {
		db := dialNodes(t, n)
		s.work.Go(func() error { return stormRead(ctx, t.Context(), db) })
	}
	return s
}

func dialNodes(t *testing.T, nodes ...*proctest.Member) *client.Client {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.URL)
	}
	db, err := client.New(client.Config{Addrs: addrs, Timeout: 5 * time.Second, Retry: client.Retry{For: must.BecomeMax}})
	must.Do(t, err)
	t.Cleanup(db.Close)
	return db
}

// stormWrite writes until stop is done. It repeats each request under its key until the request is
// acknowledged, so gained is exact.
func stormWrite(stop context.Context, db *client.Client, gained map[string]counts) error {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	zipf := rand.NewZipf(rng, stormSkew, 1, stormIDs-1)
	ops := make([]client.Op, 0, stormSweep)
	add := func(rank uint64, like, view int64) {
		id := client.Number(stormFirst + rank)
		ops = append(ops, client.Op{ID: id, Cells: client.Counts{{Column: "like", Value: like}, {Column: "view", Value: view}}})
		gained["like"][id] += like
		gained["view"][id] += view
	}
	for rank := range uint64(stormSweep) {
		add(rank, 1, 1)
	}
	for requests := 0; ; requests++ {
		// Do not cancel this with stop: a request that began must be acknowledged.
		if _, err := db.IncrMany(context.WithoutCancel(stop), "posts", ops, client.WriteOptions{Quiet: true}); err != nil {
			return fmt.Errorf("a write failed: %w", err)
		}
		if stop.Err() != nil && requests >= stormLeast {
			return nil
		}
		time.Sleep(stormPace)
		ops = ops[:0]
		for range stormOps {
			add(zipf.Uint64(), 1+rng.Int64N(3), 1+rng.Int64N(20))
		}
	}
}

// stormRead reads the rankings of a node. The first read makes the replicas build their lists of
// the largest counts, so the lists exist during the storm.
func stormRead(stop, ctx context.Context, db *client.Client) error {
	own := client.ReadOptions{Consistency: "stale"}
	for stop.Err() == nil {
		for _, column := range []string{"like", "view"} {
			if _, err := db.Hot(ctx, "posts", column, "1h", hotRows, own); err != nil {
				return fmt.Errorf("cannot read what is hot: %w", err)
			}
			if _, err := db.Top(ctx, "posts", column, hotRows, own); err != nil {
				return fmt.Errorf("cannot read the largest counts: %w", err)
			}
		}
		time.Sleep(stormPace)
	}
	return nil
}

// end stops the storm and returns the counts by column.
func (s *zipfStorm) end() map[string]counts {
	s.t.Helper()
	s.cancel()
	if err := s.work.Wait(); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]counts{"like": {}, "view": {}}
	for _, own := range s.gained {
		for column, of := range own {
			for id, n := range of {
				all[column][id] += n
			}
		}
	}
	return all
}

// ranked returns the ids, sorted by count, largest first.
func (c counts) ranked() []client.ID {
	return slices.SortedFunc(maps.Keys(c), func(a, b client.ID) int { return cmp.Or(cmp.Compare(c[b], c[a]), a.Compare(b)) })
}

func checkHottest(t *testing.T, c *proctest.Cluster, column string, exact counts) {
	t.Helper()
	ranked := exact.ranked()
	answers := map[string]client.Hot{} // first answer, by window and its beginning
	for _, window := range []string{"1h", "24h"} {
		for _, n := range c.Nodes() {
			hot, err := dialNodes(t, n).Hot(t.Context(), "posts", column, window, hotRows, client.ReadOptions{Consistency: "stale"})
			must.Do(t, err)
			at := fmt.Sprintf("%s of %s in %s", column, n.Name, window)
			if len(hot.Results) != hotRows {
				t.Fatalf("%s: %d rows", at, len(hot.Results))
			}
			listed := map[client.ID]bool{}
			for i, r := range hot.Results {
				listed[r.ID] = true
				if off := r.Gained - exact[r.ID]; max(off, -off) > r.Error {
					t.Errorf("%s: id %s gained %d with the error %d, exactly %d", at, r.ID, r.Gained, r.Error, exact[r.ID])
				}
				if count, _ := r.Counts.Get(column); count != exact[r.ID] {
					t.Errorf("%s: id %s has the count %d, exactly %d", at, r.ID, count, exact[r.ID])
				}
				if i > 0 && r.Gained > hot.Results[i-1].Gained {
					t.Errorf("%s: row %d is out of order", at, i)
				}
			}
			if other := slices.IndexFunc(ranked, func(id client.ID) bool { return !listed[id] }); exact[ranked[other]] > hot.OthersAtMost {
				t.Errorf("%s: id %s gained %d, others at most %d", at, ranked[other], exact[ranked[other]], hot.OthersAtMost)
			}
			tenth := exact[ranked[9]]
			if least := hot.Results[hotRows-1].Gained; hot.OthersAtMost == least || hot.OthersAtMost >= tenth {
				t.Errorf("%s: others gained at most %d, the last row %d, the 10th exactly %d", at, hot.OthersAtMost, least, tenth)
			}
			key := fmt.Sprint(window, hot.Since)
			if other, has := answers[key]; has && !slices.EqualFunc(other.Results, hot.Results, func(a, b client.HotRow) bool {
				return a.ID == b.ID && a.Gained == b.Gained && a.Error == b.Error
			}) {
				t.Errorf("%s: the answer differs from another node's: %+v, %+v", at, hot, other)
			}
			answers[key] = hot
			t.Logf("%s: the 10th of %d ids gained %d, the 100th %d, others at most %d", at, len(exact), tenth, exact[ranked[hotRows-1]], hot.OthersAtMost)
		}
	}
}

func checkTop(t *testing.T, c *proctest.Cluster, column string, exact counts) {
	t.Helper()
	want := exact.ranked()[:hotRows]
	for _, n := range c.Nodes() {
		for _, consistency := range []string{"stale", "linearizable"} {
			top, err := dialNodes(t, n).Top(t.Context(), "posts", column, hotRows, client.ReadOptions{Consistency: consistency})
			must.Do(t, err)
			if len(top) != hotRows {
				t.Fatalf("%s of %s: %d rows", column, n.Name, len(top))
			}
			for i, row := range top {
				if count, _ := row.Counts.Get(column); row.ID != want[i] || count != exact[row.ID] {
					t.Errorf("%s of %s, %s: place %d has id %s with %d, want %s with %d", column, n.Name, consistency, i+1, row.ID, count, want[i], exact[want[i]])
				}
			}
		}
	}
}
