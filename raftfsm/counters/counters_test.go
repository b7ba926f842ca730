package counters

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
)

func TestApplyBatchAnswersEveryEntry(t *testing.T) {
	c := newCounters(t)
	one := entryOf(1, []engine.Op{add(1, 0, 1)})
	answers := c.ApplyBatch([]*raft.Log{
		rafttest.Command(5, one),
		{Index: 6, Type: raft.LogConfiguration, Data: []byte("members")},
		rafttest.Command(7, one),
		{Index: 8, Type: raft.LogConfiguration},
	})
	if len(answers) != 4 || answers[1] != nil || answers[3] != nil {
		t.Fatalf("answers %v", answers)
	}
	for i, want := range map[int]raftfsm.Result{0: {Index: 5, Rows: []int64{1}}, 2: {Index: 7, Rows: []int64{2}}} {
		if got := answers[i].(*raftfsm.Result); got.Index != want.Index || got.Rows[0] != want.Rows[0] {
			t.Errorf("answer %d is %+v", i, got)
		}
	}
	if c.Applied() != 8 {
		t.Errorf("applied %d, the last is of a configuration at 8", c.Applied())
	}
	if got := c.ApplyBatch(nil); len(got) != 0 {
		t.Errorf("answers %v to nothing", got)
	}
}

// The next entry must not change the result of an earlier one, because the proposer still reads
// that.
func TestResultsAreTheProposers(t *testing.T) {
	c := newCounters(t)
	most := []engine.Op{add(1, 0, 1<<63-1), add(1, 0, 1)}
	first := c.Apply(rafttest.Command(1, entryOf(1, most))).(*raftfsm.Result)
	c.Apply(rafttest.Command(2, entryOf(1, []engine.Op{{ID: 1, Kind: engine.OpDelete}, add(1, 0, 5), add(1, 0, 6)})))
	if first.Rows[0] != 1<<63-1 || first.Rows[1] != 1<<63-1 || len(first.Overflows) != 1 || first.Overflows[0].Op != 1 {
		t.Errorf("result %+v", first)
	}
}

func TestWaitApplied(t *testing.T) {
	one := entryOf(0, []engine.Op{add(1, 0, 1)})
	t.Run("applied before", func(t *testing.T) {
		c := newCounters(t)
		c.Apply(rafttest.Command(3, one))
		for _, index := range []uint64{0, 2, 3} {
			if !c.WaitApplied(index, time.Time{}) {
				t.Errorf("index %d is not there", index)
			}
		}
	})
	t.Run("deadline", func(t *testing.T) {
		c := newCounters(t)
		if c.WaitApplied(1, time.Now().Add(5*time.Millisecond)) || c.WaitApplied(1<<64-1, time.Time{}) {
			t.Error("an entry that never came was seen")
		}
	})
	t.Run("applied meanwhile, by others' entries and by a restore", func(t *testing.T) {
		snapshot := func() []byte {
			o := newCounters(t)
			o.Apply(rafttest.Command(500, one))
			return rafttest.Persisted(t, o)
		}()
		c := newCounters(t)
		var wg sync.WaitGroup
		for index := range uint64(500) {
			wg.Go(func() {
				if !c.WaitApplied(index+1, soon()) {
					t.Errorf("waited in vain for %d", index+1)
				}
				if got := c.Applied(); got < index+1 {
					t.Errorf("applied %d after waiting for %d", got, index+1)
				}
			})
		}
		for index := range uint64(400) {
			if index%3 == 0 {
				c.ApplyBatch([]*raft.Log{{Index: index + 1, Type: raft.LogConfiguration}})
			} else {
				c.Apply(rafttest.Command(index+1, one))
			}
		}
		if err := rafttest.Restore(c, snapshot); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// A snapshot has the state at one moment, even if entries are applied while it is persisted:
//
//  1. Its index and digest are those of that moment.
//  2. It contains no later entry.
//  3. Applying the later entries to it gives the live state.
func TestSnapshotIsOfItsMoment(t *testing.T) {
	t.Parallel()
	c := filledCounters(t, 30_000)
	var entries [][]byte
	for i := range uint64(200) {
		var ops []engine.Op
		for j := range uint64(50) {
			ops = append(ops, add(i*j*j*2654435761, uint8(j%6), int64(j)+1), engine.Op{ID: j << (i % 40), Kind: engine.OpDelete})
		}
		entries = append(entries, entryOf(0, ops))
	}
	before := c.State()
	snapshot, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	s := &rafttest.Sink{}
	persisting := make(chan error, 1)
	go func() { persisting <- snapshot.Persist(s) }()
	for _, entry := range entries {
		c.Apply(rafttest.Next(c, entry))
	}
	if err := <-persisting; err != nil {
		t.Fatal(err)
	}
	snapshot.Release()
	if c.State().Digest == before.Digest {
		t.Fatal("the entries changed nothing")
	}

	r := newCounters(t)
	if err := rafttest.Restore(r, s.Bytes()); err != nil {
		t.Fatal(err)
	}
	if got := r.State(); got.Index != before.Index || got.Digest != before.Digest || got.Rows != before.Rows {
		t.Fatalf("restored %+v, the moment was %+v", got, before)
	}
	for _, entry := range entries {
		r.Apply(rafttest.Next(r, entry))
	}
	if got, want := r.State(), c.State(); got.Index != want.Index || got.Digest != want.Digest || got.Rows != want.Rows {
		t.Errorf("replayed %+v, live %+v", got, want)
	}
}

// State returns values of one moment while entries are applied. Each entry adds 1 to the rows and
// to the index.
func TestStateIsOfOneMoment(t *testing.T) {
	c := newCounters(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(3000) {
			c.Apply(rafttest.Command(i+1, entryOf(0, []engine.Op{add(i, 0, 1)})))
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if s := c.State(); s.Index != s.Rows {
			t.Fatalf("%d rows at index %d", s.Rows, s.Index)
		}
	}
}

func TestPersistTellsOfABrokenSink(t *testing.T) {
	rafttest.MustReportABrokenSink(t, filledCounters(t, 20_000))
}

// closeTeller is an input that records whether it was closed.
type closeTeller struct {
	io.Reader
	closed bool
}

func (c *closeTeller) Close() error { c.closed = true; return nil }

func TestRestoreClosesItsInput(t *testing.T) {
	good := rafttest.Persisted(t, goldenCounters(t))
	for _, content := range [][]byte{good, good[:len(good)/2]} {
		in := &closeTeller{Reader: bytes.NewReader(content)}
		_ = newCounters(t).Restore(in)
		if !in.closed {
			t.Errorf("an input of %d bytes is still open", len(content))
		}
	}
}
