package shard

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
)

func noPause(int) error { return nil }

// A flipped bit in a block that nobody reads is found by a pass, told, and the replica is
// made whole from another. A pass over what is whole finds nothing.
func TestScrubFindsDamage(t *testing.T) {
	all := coldCluster(t)
	m := all[1]
	m.mustNameCold()
	m.stop()
	m.start() // what was in Pebble's log is in its files now
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	mustDo(t, m.scrub.pass(noPause))
	if s := m.scrub.report(); s.Damaged != 0 || s.Blocks == 0 || s.Bytes < 4096 || s.Passes != 1 || s.LastPass.IsZero() || m.damagedShards() != 0 {
		t.Fatalf("a pass over what is whole: %+v", s)
	}
	m.stop()
	flipLargest(t, filepath.Join(m.dir, "cold", "*.sst"))
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	damaged := m.here()
	mustDo(t, m.scrub.pass(noPause))
	if s := m.scrub.report(); s.Damaged == 0 || !damaged.damaged.Load() {
		t.Fatalf("a flipped bit is not found: %+v", s)
	}
	mustBeRepaired(t, all, m, damaged)
	eventually(t, "no stored snapshot names what is damaged", func() bool {
		mustWrite(t, m.Node, m.Keyspace("posts"), addTo(coldID(3), 0, 1)) // something to take a snapshot of
		found := m.scrub.report().Damaged
		mustDo(t, m.scrub.pass(noPause))
		return m.scrub.report().Damaged == found
	})
	if n := m.damagedShards(); n != 0 {
		t.Errorf("%d shards are damaged", n)
	}
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
}

// A pass is spread over its time, never faster than the disk's share, and ends with the
// node.
func TestScrubPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{stopping: make(chan struct{})}
		n.scrub.stopping = n.stopping
		const every = 50 * time.Millisecond
		n.scrub.tell(func(s *ColdScrub) { s.PassBytes, s.PassOf = 100<<10, 200<<10 })
		began := time.Now()
		pause := n.scrub.pause(began, every)
		mustDo(t, pause(scrubPieceBytes-1))
		if took := time.Since(began); took > 0 {
			t.Errorf("less than a piece took %v", took)
		}
		mustDo(t, pause(1))
		if took := time.Since(began); took < every/2 {
			t.Errorf("half of a pass of %v took %v", every, took)
		}
		began = time.Now()
		mustDo(t, pause(1<<20))
		if took := time.Since(began); took < time.Second/8 {
			t.Errorf("1 MiB took %v", took)
		}
		n.scrub.tell(func(s *ColdScrub) { s.PassBytes = 200 << 10 })
		pause = n.scrub.pause(time.Now(), time.Hour)
		close(n.stopping)
		if err := pause(scrubPieceBytes); !errors.Is(err, ErrDraining) {
			t.Errorf("a node that is stopping: %v", err)
		}
	})
}

// openDamagedNode is a node with a flipped bit in one block of its cold rows.
func openDamagedNode(t *testing.T) *Node {
	t.Helper()
	dir := t.TempDir()
	n := openColdNode(t, dir, 1, 0)
	fillCold(t, n, n.Keyspace("posts"))
	closeCold(t, n)
	n = openColdNode(t, dir, 1, 0) // what was in Pebble's log is in its files now
	closeCold(t, n)
	flipLargest(t, filepath.Join(dir, "cold", "*.sst"))
	return openColdNode(t, dir, 1, 0)
}

// A damaged block keeps its own neighbours from being written anew, and no others.
func TestDamageStopsOnlyItsNeighbours(t *testing.T) {
	n := openDamagedNode(t)
	ks := n.Keyspace("posts")
	refused := 0
	for from := uint64(0); from < 20_000; from += 20 {
		w := &Write{Deadline: soon()}
		for i := from; i < from+2; i++ { // a tenth of all
			w.Ops = append(w.Ops, addTo(coldID(i), 0, 1))
		}
		if n.Write(ks, w) != nil {
			refused++
		}
	}
	g, err := n.groupsOf(ks)
	mustDo(t, err)
	fsm := g[0].replica.Load().fsm.(*raftfsm.Counters)
	fsm.Watch(anyAge)
	idle := fsm.Watch(anyAge)
	if refused == 0 || refused > 900 || idle.Segments() < 2 {
		t.Fatalf("%d of 1000 writes met damage, %d segments are to be written anew", refused, idle.Segments())
	}
	rows, err := fsm.FreezeSome(idle, idle.Segments())
	if rows < 5_000 || !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("%d rows were written anew, %v", rows, err)
	}
	row := make([]int64, 4)
	read := 0
	for i := uint64(0); i < 20_000; i += 20 {
		if n.Get(ks, []uint64{coldID(i)}, 4, &ReadOptions{Deadline: soon()}, row) == nil {
			if read++; row[0] != 2 {
				t.Fatalf("row %d reads %v", i, row)
			}
		}
	}
	if want := 1000 - refused; read < want {
		t.Errorf("%d rows are read of %d that were written to", read, want)
	}
}

// A scan that leaves out an unreadable shard shows no row of it, not even of blocks that it
// read before the damaged one.
func TestScanShowsNothingOfAnUnreadableShard(t *testing.T) {
	n := openDamagedNode(t)
	opt := &ReadOptions{Consistency: Stale, SkipUnreadable: true, Deadline: soon()}
	r, err := n.Scan(n.Keyspace("posts"), 0, false, coldTestRows, 4, opt)
	if err != nil || len(r.IDs) != 0 || !slices.Equal(r.Unreadable, []int{0}) {
		t.Errorf("%d ids, unreadable shards %d, %v", len(r.IDs), r.Unreadable, err)
	}
}

// A damaged block keeps its own neighbours on disk, and all others come as an operator
// says, who is told in one line.
func TestWarmPassesDamage(t *testing.T) {
	n := openDamagedNode(t)
	_, before := coldReportOf(t, n, "posts")
	work := order(t, n, TieringJob{Verb: ColdWarm, Keyspace: "posts", To: 1<<64 - 1, Keep: time.Hour})
	_, posts := coldReportOf(t, n, "posts")
	if posts.ColdRows == 0 || posts.ColdRows >= before.ColdRows || work.Rows != before.ColdRows-posts.ColdRows || posts.DamagedShards != 1 {
		t.Errorf("%+v: %+v, before %+v", work, posts, before)
	}
	if want := "group 1: cold rows are damaged"; work.Failed != want {
		t.Errorf("failed by %q, want %q", work.Failed, want)
	}
}
