package shard

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

func noPause(int) error { return nil }

// A pass finds and reports a flipped bit in a block that nobody reads, and the node repairs the replica
// from another. A pass over intact rows finds nothing.
func TestScrubFindsDamage(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := all[1]
	m.mustNameCold()
	m.stop()
	m.start() // the rows that were in Pebble's log are now in its files
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	mustDo(t, m.tiering.Scrub.Pass(noPause))
	if s := m.tiering.Scrub.Report(); s.Damaged != 0 || s.Blocks == 0 || s.Bytes < 4096 || s.Passes != 1 || s.LastPass.IsZero() || m.registry.damagedShards() != 0 {
		t.Fatalf("a pass over what is whole: %+v", s)
	}
	m.stop()
	flipLargest(t, filepath.Join(m.dir, "cold", "*.sst"))
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	damaged := m.here()
	mustDo(t, m.tiering.Scrub.Pass(noPause))
	if s := m.tiering.Scrub.Report(); s.Damaged == 0 || !damaged.damage.Found() {
		t.Fatalf("a flipped bit is not found: %+v", s)
	}
	mustBeRepaired(t, all, m, damaged)
	eventually(t, "no stored snapshot names what is damaged", func() bool {
		mustWrite(t, m.Node, m.Keyspace("posts"), addTo(coldID(3), 0, 1)) // something to take a snapshot of
		found := m.tiering.Scrub.Report().Damaged
		mustDo(t, m.tiering.Scrub.Pass(noPause))
		return m.tiering.Scrub.Report().Damaged == found
	})
	if n := m.registry.damagedShards(); n != 0 {
		t.Errorf("%d shards are damaged", n)
	}
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
}

// openDamagedNode returns a node with a flipped bit in one block of its cold rows.
func openDamagedNode(t *testing.T) *Node {
	t.Helper()
	dir := t.TempDir()
	n := openColdNode(t, dir, 1, 0)
	fillCold(t, n, n.Keyspace("posts"))
	closeCold(t, n)
	n = openColdNode(t, dir, 1, 0) // the rows that were in Pebble's log are now in its files
	closeCold(t, n)
	flipLargest(t, filepath.Join(dir, "cold", "*.sst"))
	return openColdNode(t, dir, 1, 0)
}

// A damaged block keeps its own neighbours from being written anew, and no others.
func TestDamageStopsOnlyItsNeighbours(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 10,000 rows cold")
	}
	t.Parallel()
	n := openDamagedNode(t)
	ks := n.Keyspace("posts")
	refused := 0
	for from := uint64(0); from < 20_000; from += 20 {
		w := &Write{Deadline: soon()}
		for i := from; i < from+2; i++ { // a tenth of all
			w.Ops = append(rowOps(w), addTo(coldID(i), 0, 1))
		}
		if n.Write(ks, w) != nil {
			refused++
		}
	}
	g, err := n.router.groupsOf(ks)
	mustDo(t, err)
	fsm := g[0].replica.Load().fsm.Machine.(*counters.Machine)
	fsm.Watch(tiering.AnyAge, true)
	idle := fsm.Watch(tiering.AnyAge, true)
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

// A scan that leaves out an unreadable shard returns none of its rows. That includes rows of blocks
// that were read before the damaged one.
func TestScanShowsNothingOfAnUnreadableShard(t *testing.T) {
	t.Parallel()
	n := openDamagedNode(t)
	opt := &ReadOptions{Consistency: Stale, Deadline: soon()}
	r, err := n.scanReadable(n.Keyspace("posts"), coldTestRows, 4, opt)
	if err != nil || len(r.IDs) != 0 || !slices.Equal(r.Unreadable, []int{0}) {
		t.Errorf("%d ids, unreadable shards %d, %v", len(r.IDs), r.Unreadable, err)
	}
}

// The answer for a damaged row is its error, with no rows after it.
func TestReadOfDamageIsAnsweredByItsError(t *testing.T) {
	t.Parallel()
	n := openDamagedNode(t)
	ks := n.Keyspace("posts")
	g, err := n.router.groupsOf(ks)
	mustDo(t, err)
	row := make([]int64, 4)
	for i := uint64(0); i < 20_000; i += 20 {
		if n.Get(ks, []uint64{coldID(i)}, 4, &ReadOptions{Deadline: soon()}, row) == nil {
			continue
		}
		_, key := ks.Route().KeyOf(coldID(i))
		read := newRemoteRead(&rows.Query{Width: 4}, &raftfsm.Part{Route: g[0].first, Keys: []uint64{key}}, g[0], &ReadOptions{Consistency: Stale})
		read.disk = true
		answer, err := n.reader.serveReads(t.Context(), read.appendTo(binary.AppendUvarint(nil, 1)))
		mustDo(t, err)
		r := wire.Reader{Rest: answer}
		if told := rpc.ReadError(&r); !errors.Is(told, errs.ErrNoQuorum) || r.End() != nil {
			t.Errorf("told %v, then %d bytes", told, len(r.Rest))
		}
		return
	}
	t.Error("no row is damaged")
}
