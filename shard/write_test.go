package shard

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// model is a keyspace in its simplest form.
type model map[uint64][]int64

func (m model) row(id uint64, width int) []int64 {
	row := make([]int64, width)
	copy(row, m[id])
	return row
}

func (m model) apply(op *engine.Op) (uint8, bool) {
	row := m.row(op.ID, engine.ColumnsMax)
	for _, c := range op.Cells {
		v := big.NewInt(c.Value)
		if op.Kind == engine.OpAdd {
			v.Add(v, big.NewInt(row[c.Column]))
		}
		if !v.IsInt64() {
			return c.Column, false
		}
		row[c.Column] = v.Int64()
	}
	if op.Kind == engine.OpDelete {
		clear(row)
	}
	m[op.ID] = row
	return 0, true
}

// ids returns the ids of the rows with a count, ascending.
func (m model) ids() []uint64 {
	var ids []uint64
	for id, row := range m {
		if slices.ContainsFunc(row, func(v int64) bool { return v != 0 }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func randomID(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return 1<<64 - 1 - r.Uint64N(10)
	case 1:
		return r.Uint64() >> r.IntN(64)
	default:
		return r.Uint64N(25)
	}
}

func randomOps(r *rand.Rand, n, columns int) counters.Ops {
	ops := make(counters.Ops, n)
	for i := range ops {
		op := engine.Op{ID: randomID(r), Kind: engine.OpAdd}
		switch r.IntN(10) {
		case 0:
			op.Kind = engine.OpDelete
		case 1, 2:
			op.Kind = engine.OpSet
		}
		for range 1 + r.IntN(columns) {
			if op.Kind == engine.OpDelete {
				break
			}
			value := []int64{1, -1, 65535, r.Int64N(100), 1<<63 - 1, -1 << 63}[r.IntN(6)]
			op.Cells = append(op.Cells, engine.Cell{Column: uint8(r.IntN(columns)), Value: value})
		}
		ops[i] = op
	}
	return ops
}

// shardedNode has the keyspaces s1, s2 … with 1, 2 … up to shardsMax shards and five columns each.
// One more keyspace has shardsMax shards and is spread by hash.
func shardedNode(t *testing.T, shardsMax int) (*Node, []*Keyspace) {
	t.Helper()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	var all []*Keyspace
	for shards := 1; shards <= shardsMax; shards++ {
		ks, err := n.CreateKeyspace(t.Context(), Keyspace{
			Name: fmt.Sprintf("s%d", shards), Columns: []string{"a", "b", "c", "d", "e"}, Shards: shards,
		})
		mustDo(t, err)
		all = append(all, ks)
	}
	ks, err := n.CreateKeyspace(t.Context(), Keyspace{
		Name: "hash", Columns: []string{"a", "b", "c", "d", "e"}, Shards: shardsMax, Sharding: ShardingHash,
	})
	mustDo(t, err)
	return n, append(all, ks)
}

// With any number of shards, a keyspace equals the model:
//
//  1. each op's row is the row right after that op, even if an id comes twice;
//  2. refused ops are numbered as in the request;
//  3. pages and single reads agree;
//  4. scans of any page size and from any id agree;
//  5. the token of a write is enough to read it.
func TestNodeIsTheModel(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 7)
	for _, ks := range keyspaces {
		t.Run(fmt.Sprintf("%d shards %s", ks.Shards, ks.Sharding), func(t *testing.T) {
			r := rand.New(rand.NewPCG(11, uint64(ks.Shards)))
			want := model{}
			w := &Write{}
			for range 40 {
				width := []int{0, 1, 5}[r.IntN(3)]
				*w = Write{
					Ops: randomOps(r, 1+r.IntN(60), 5), Width: width, Deadline: soon(),
					Overflows: w.Overflows, Token: w.Token, Duplicate: true, // as in the write before
				}
				w.Rows = make([]int64, len(rowOps(w))*width)
				mustDo(t, n.Write(ks, w))
				checkWrite(t, w, ks, want)
				checkRows(t, n, ks, want, w.Token, r)
			}
			checkScans(t, n, ks, want, r)
		})
	}
}

func checkWrite(t *testing.T, w *Write, ks *Keyspace, want model) {
	t.Helper()
	var refused []engine.Overflow
	touched := map[uint32]bool{}
	for i := range rowOps(w) {
		if column, ok := want.apply(&rowOps(w)[i]); !ok {
			refused = append(refused, engine.Overflow{Op: i, Column: column})
		}
		if got, row := w.Rows[i*w.Width:(i+1)*w.Width], want.row(rowOps(w)[i].ID, w.Width); !slices.Equal(got, row) {
			t.Fatalf("op %d of id %d: row %v, want %v", i, rowOps(w)[i].ID, got, row)
		}
		touched[ks.FirstGroup+uint32(ks.ShardOf(rowOps(w)[i].ID))] = true
	}
	if !slices.Equal(w.Overflows, refused) {
		t.Fatalf("refused %v, want %v", w.Overflows, refused)
	}
	if len(w.Token.At) != len(touched) || w.Duplicate {
		t.Fatalf("token %v of groups %v, duplicate %v", w.Token, touched, w.Duplicate)
	}
	for _, e := range w.Token.At {
		if !touched[e.Group] || e.Index == 0 {
			t.Fatalf("token %v of groups %v", w.Token, touched)
		}
	}
}

func checkRows(t *testing.T, n *Node, ks *Keyspace, want model, token Token, r *rand.Rand) {
	t.Helper()
	ids := make([]uint64, 1+r.IntN(50))
	for i := range ids {
		ids[i] = randomID(r)
	}
	opt := ReadOptions{Token: token, Consistency: []Consistency{Stale, Bounded, Linearizable}[r.IntN(3)]}
	rows := mustGet(t, n, ks, opt, ids...)
	for i, id := range ids {
		one := mustGet(t, n, ks, opt, id)
		if got := rows[i*5 : (i+1)*5]; !slices.Equal(got, want.row(id, 5)) || !slices.Equal(one, got) {
			t.Fatalf("id %d: page %v, alone %v, want %v", id, got, one, want.row(id, 5))
		}
	}
}

func checkScans(t *testing.T, n *Node, ks *Keyspace, want model, r *rand.Rand) {
	t.Helper()
	all := want.ids()
	scan := func(after uint64, hasAfter bool, limit int) *rows.Scan {
		t.Helper()
		got, err := n.Scan(ks, after, hasAfter, limit, 5, &ReadOptions{Consistency: Linearizable, Deadline: soon()})
		mustDo(t, err)
		if len(got.IDs) > limit || len(got.Rows) != len(got.IDs)*5 {
			t.Fatalf("%d ids and %d counts for a limit of %d", len(got.IDs), len(got.Rows), limit)
		}
		for i, id := range got.IDs {
			if !slices.Equal(got.Rows[i*5:(i+1)*5], want.row(id, 5)) {
				t.Fatalf("id %d: row %v, want %v", id, got.Rows[i*5:(i+1)*5], want.row(id, 5))
			}
		}
		return got
	}
	for _, limit := range []int{1, 2, 7, len(all) - 1, len(all), len(all) + 1, 10_000} {
		var ids []uint64
		page := scan(0, false, limit)
		for ids = page.IDs; page.More; ids = append(ids, page.IDs...) {
			if page = scan(ids[len(ids)-1], true, limit); len(ids) > len(all) {
				break
			}
		}
		if !slices.Equal(ids, all) {
			t.Fatalf("pages of %d gave %d ids, want %d: %v", limit, len(ids), len(all), ids)
		}
	}
	from := append([]uint64{0, 1, 24, 25, 1 << 63, 1<<64 - 2, 1<<64 - 1}, all...)
	for range 20 {
		from = append(from, r.Uint64())
	}
	for _, after := range from {
		first, found := slices.BinarySearch(all, after)
		if found {
			first++
		}
		if got := scan(after, true, 10_000); !slices.Equal(got.IDs, all[first:]) || got.More {
			t.Fatalf("after %d: %v, want %v", after, got.IDs, all[first:])
		}
		if got := scan(after, true, 3); !slices.Equal(got.IDs, all[first:min(first+3, len(all))]) {
			t.Fatalf("3 after %d: %v, want %v", after, got.IDs, all[first:])
		}
	}
	narrow, err := n.Scan(ks, 0, false, 10_000, 1, &ReadOptions{Deadline: soon()})
	mustDo(t, err)
	var withA []uint64
	for _, id := range all {
		if want[id][0] != 0 {
			withA = append(withA, id)
		}
	}
	if !slices.Equal(narrow.IDs, withA) {
		t.Fatalf("rows with a count in a: %v, want %v", narrow.IDs, withA)
	}
}

// A scan finds all ids even if they are all in one shard. A page at first reads from each shard
// only its share.
func TestScanOfOneShardAlone(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 5)
	ks, want := keyspaces[4], model{}
	var ops []engine.Op
	for i := range uint64(700) {
		op := addTo(3+i*i*5, 0, 1)
		if i >= 690 { // and one other id at the far end
			op.ID = 1<<64 - 1 - (i-690)*5
		}
		ops = append(ops, op)
		want.apply(&op)
	}
	mustWrite(t, n, ks, ops...)
	checkScans(t, n, ks, want, rand.New(rand.NewPCG(1, 1)))
}

// heldGroup is a group that answers entries with err if that is set. Otherwise it passes entries
// on, once hold is closed if that is set.
type heldGroup struct {
	propose.Group
	err     error
	hold    chan struct{}
	entries *atomic.Int32 // the entries that it was given

	last chan struct{} // closed when the previous entry has been passed on, because the log keeps their order
}

func (g *heldGroup) Apply(entry []byte) raft.ApplyFuture {
	g.entries.Add(1)
	if g.err != nil {
		return failedFuture{g.err}
	}
	if g.hold != nil {
		f := &heldFuture{done: make(chan struct{})}
		before, handed := g.last, make(chan struct{})
		g.last = handed
		go func() {
			<-g.hold
			if before != nil {
				<-before
			}
			future := g.Group.Apply(entry)
			close(handed)
			f.err = future.Error()
			f.response = future.Response()
			close(f.done)
		}()
		return f
	}
	return g.Group.Apply(entry)
}

// heldFuture is answered once done is closed.
type heldFuture struct {
	done     chan struct{}
	err      error
	response any
}

func (f *heldFuture) Error() error  { <-f.done; return f.err }
func (*heldFuture) Index() uint64   { return 0 }
func (f *heldFuture) Response() any { return f.response }

// hinderedMax is how long a hindered request keeps trying: an unhindered one is answered within
// that time on a busy machine too.
const hinderedMax = 10 * time.Second

// hinder puts a heldGroup between a shard and its log, and returns it.
func hinder(n *Node, ks *Keyspace, shard int, h heldGroup) *heldGroup {
	g := n.registry.groups.Load().byFirst[ks.FirstGroup].all[shard]
	r := g.replica.Load()
	h.Group, h.entries = r.group, new(atomic.Int32)
	reconfigure(n, g, func(cfg *propose.Config) { cfg.Group = &h })
	return &h
}

// reconfigure restarts the proposer of this node's replica of a shard.
func reconfigure(n *Node, g *shardReplica, change func(*propose.Config)) {
	r := g.replica.Load()
	r.proposer.Load().Close()
	cfg := n.proposerConfig(g, r)
	change(&cfg)
	r.proposer.Store(propose.New(cfg))
}

// The result of a part after several tries: the worst possible outcome, with the cause
// instead of the timeout.
func TestFateOfTries(t *testing.T) {
	t.Parallel()
	late := fmt.Errorf("%w: %w", errs.ErrOverloaded, errs.ErrTooLate)
	for _, test := range []struct {
		name  string
		tries []error
		want  error
	}{
		{"too late at once", []error{late}, errs.ErrTooLate},
		{"no leader until it was too late", []error{errs.ErrNoLeader, late}, errs.ErrNoLeader},
		{"unknown, then too late", []error{errs.ErrOutcomeUnknown, late}, errs.ErrOutcomeUnknown},
		{"unknown, then no leader", []error{errs.ErrOutcomeUnknown, errs.ErrNoLeader, late}, errs.ErrOutcomeUnknown},
		{"no leader, then well", []error{errs.ErrNoLeader, nil}, nil},
	} {
		p := part{}
		for _, err := range test.tries {
			p.err = p.fate(err)
		}
		if !errors.Is(p.err, test.want) || errors.Is(p.err, errs.ErrTooLate) && !errors.Is(test.want, errs.ErrTooLate) {
			t.Errorf("%s: told %v, want %v", test.name, p.err, test.want)
		}
	}
}

// If the outcomes of shards differ:
//
//  1. the error is the worst of them;
//  2. applied and unknown ids are in the order of the request, with duplicates;
//  3. the rows agree with them.
func TestShardsThatDoNotFareAlike(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	hinder(n, ks, 1, heldGroup{err: raft.ErrNotLeader})
	hinder(n, ks, 2, heldGroup{err: raft.ErrLeadershipLost})
	third := hinder(n, ks, 3, heldGroup{hold: forever})

	var all sync.WaitGroup // t.Run without t.Parallel: most of these tests only wait for their end
	begin := func(f fareTest, ids uint64) {
		all.Go(func() { t.Run(f.name, func(t *testing.T) { f.movedBy(ids).run(t, n, ks) }) })
	}
	// This leaves shard 3 with as many entries in flight as it may have, so that later ones are
	// withdrawn.
	begin(fareTest{"one shard, no answer", []uint64{3, 7}, errs.ErrOutcomeUnknown, nil, nil}, 0)
	eventually(t, "shard 3 has an entry in flight", func() bool { return third.entries.Load() > 0 })
	for i, f := range []fareTest{
		{"all well", []uint64{0, 4, 0}, nil, nil, nil},
		{"all refused", []uint64{1, 5}, errs.ErrNoLeader, nil, nil},
		{"one shard, unknown", []uint64{2, 6}, errs.ErrOutcomeUnknown, nil, nil},
		{"applied and refused", []uint64{8, 1, 0, 5, 8}, errs.ErrNoLeader, []uint64{8, 0, 8}, nil},
		{"applied and unknown", []uint64{2, 4, 2, 0}, errs.ErrOutcomeUnknown, []uint64{4, 0}, []uint64{2, 2}},
		{"refused and unknown", []uint64{1, 2, 6}, errs.ErrOutcomeUnknown, nil, []uint64{2, 6}},
		{"unknown and withdrawn", []uint64{7, 2}, errs.ErrOutcomeUnknown, nil, []uint64{2}},
		{"one shard, withdrawn", []uint64{7, 3}, errs.ErrOverloaded, nil, nil},
		{"applied and withdrawn", []uint64{7, 4, 3}, errs.ErrOverloaded, []uint64{4}, nil},
		{"all of it", []uint64{3, 2, 1, 0, 3}, errs.ErrOutcomeUnknown, []uint64{0}, []uint64{2}},
	} {
		begin(f, 16*uint64(i+1))
	}
	all.Wait()
}

// fareTest is a write to several shards and its expected result.
type fareTest struct {
	name             string
	ids              []uint64
	want             error
	applied, unknown []uint64 // both nil for an error that is no PartialError
}

// movedBy returns the test with other ids of the same shards.
func (f fareTest) movedBy(ids uint64) fareTest {
	for _, all := range []*[]uint64{&f.ids, &f.applied, &f.unknown} {
		*all = slices.Clone(*all)
		for i := range *all {
			(*all)[i] += ids
		}
	}
	return f
}

func (f fareTest) run(t *testing.T, n *Node, ks *Keyspace) {
	t.Helper()
	before := mustGet(t, n, ks, ReadOptions{}, f.ids...)
	w := &Write{Width: 5, Rows: make([]int64, 5*len(f.ids)), Deadline: time.Now().Add(hinderedMax)}
	for _, id := range f.ids {
		w.Ops = append(rowOps(w), addTo(id, 0, 1))
	}
	err := n.Write(ks, w)
	if !errors.Is(err, f.want) || err == nil != (f.want == nil) {
		t.Fatalf("told %v, want %v", err, f.want)
	}
	var partial *PartialError
	if errors.As(err, &partial) != (f.applied != nil || f.unknown != nil) {
		t.Fatalf("told %v", err)
	}
	applied := f.applied
	if partial != nil && (!slices.Equal(partial.Applied, applied) || !slices.Equal(partial.Unknown, f.unknown)) {
		t.Errorf("applied %v, unknown %v; want %v, %v", partial.Applied, partial.Unknown, applied, f.unknown)
	}
	if err == nil {
		applied = f.ids
	}
	after := mustGet(t, n, ks, ReadOptions{}, f.ids...)
	for i, id := range f.ids {
		want := before[i*5]
		for _, a := range applied {
			if a == id {
				want++
			}
		}
		if after[i*5] != want {
			t.Errorf("id %d: count %d, want %d", id, after[i*5], want)
		}
	}
}

// A write that was given up, and everything in it, belongs to the caller again. A change of that
// memory must not reach the entry in flight.
func TestGivenUpWriteIsTheCallersAgain(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 2)
	ks := keyspaces[1]
	hold := make(chan struct{})
	for s := range 2 {
		hinder(n, ks, s, heldGroup{hold: hold})
	}
	w := &Write{Rows: make([]int64, 5*50), Width: 5}
	fill := func(cells []engine.Cell) {
		w.Ops = rowOps(w)[:0]
		for id := range uint64(50) {
			w.Ops = append(rowOps(w), engine.Op{ID: id, Kind: engine.OpAdd, Cells: cells})
		}
	}
	cells := []engine.Cell{{Column: 1, Value: 1}}
	fill(cells)
	w.Deadline = time.Now().Add(hinderedMax)
	if err := n.Write(ks, w); !errors.Is(err, errs.ErrOutcomeUnknown) {
		t.Fatalf("told %v", err)
	}
	for o := range rowOps(w) {
		rowOps(w)[o] = engine.Op{ID: 77, Kind: engine.OpSet, Cells: cells}
	}
	cells[0] = engine.Cell{Column: 4, Value: 1 << 40}
	for id := range uint64(50) { // uses the scratch memory of the previous write
		other := &Write{Ops: counters.Ops{addTo(1000+id, 3, 9)}, Deadline: soon()}
		mustDo(t, n.Write(keyspaces[0], other))
	}
	fill([]engine.Cell{{Column: 1, Value: 1}})
	w.Deadline = soon()
	close(hold)
	mustDo(t, n.Write(ks, w))
	for id := range uint64(50) {
		want := []int64{0, 2, 0, 0, 0}
		if got := mustGet(t, n, ks, ReadOptions{}, id); !slices.Equal(got, want) || !slices.Equal(w.Rows[id*5:(id+1)*5], want) {
			t.Fatalf("id %d: %v, answered %v, want %v", id, got, w.Rows[id*5:(id+1)*5], want)
		}
	}
	if got := mustGet(t, n, ks, ReadOptions{}, 77); !slices.Equal(got, make([]int64, 5)) {
		t.Errorf("id 77: %v", got)
	}
}

func TestWriteWithoutOps(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 2)
	w := &Write{Deadline: soon(), Token: Token{At: []GroupIndex{{Group: 1, Index: 1}}}}
	if err := n.Write(keyspaces[1], w); err != nil || len(w.Token.At) != 0 {
		t.Errorf("token %v, %v", w.Token, err)
	}
}

// A full queue of one group refuses the whole request:
//
//  1. the error is no PartialError, and no row changed;
//  2. no space stays reserved in the other groups;
//  3. as soon as the queue has space, the same request is applied, and is no duplicate.
func TestAFullQueueRefusesTheWholeRequest(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	groups := n.registry.groups.Load().byFirst[ks.FirstGroup].all
	// fill takes all room of a queue that was empty. An empty queue takes any proposal, but a queue
	// with entries takes none as large as the queue.
	fill := func(t *testing.T, g *shardReplica) *propose.Proposal {
		t.Helper()
		q, err := g.replica.Load().proposer.Load().Reserve(nil, propose.QueueOpsMax, false, 0)
		mustDo(t, err)
		return q
	}
	ids := []uint64{0, 1, 2, 3}
	for name, id := range map[string]dedup.RequestID{
		"no identity": {}, "a key": dedup.ByKey([]byte("k"), []byte("b")), "a producer": dedup.ByProducer([]byte("p"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			w := &Write{ID: id, Deadline: soon()}
			for _, id := range ids {
				w.Ops = append(rowOps(w), addTo(id, 0, 1))
			}
			before := mustGet(t, n, ks, ReadOptions{}, ids...)
			full := fill(t, groups[2])
			err := n.Write(ks, w)
			full.Cancel()
			if partial := (*PartialError)(nil); !errors.Is(err, errs.ErrOverloaded) || errors.As(err, &partial) {
				t.Fatalf("told %v", err)
			}
			if after := mustGet(t, n, ks, ReadOptions{}, ids...); !slices.Equal(after, before) {
				t.Errorf("rows %v, before %v", after, before)
			}
			for _, g := range groups {
				fill(t, g).Cancel()
			}
			mustDo(t, n.Write(ks, w))
			if w.Duplicate {
				t.Error("it is told to be a duplicate")
			}
		})
	}
}
