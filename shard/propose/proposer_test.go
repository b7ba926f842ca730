package propose

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
)

var errBrokenDisk = errors.New("the disk is broken")

// limits are the default limits of a node.
var limits = dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: dedup.KeysMaxMax, ProducerIdle: 24 * time.Hour, ProducersMax: 100_000}

var eventually = must.Become

// fakeGroup is a log in memory. It applies an entry when the test calls settle, or at once if
// prompt is set.
type fakeGroup struct {
	fsm    TimedFSM
	failCh chan struct{}
	prompt bool

	mu      sync.Mutex
	entries []*fakeFuture
	index   uint64
}

type fakeFuture struct {
	entry    []byte
	done     chan struct{}
	err      error
	response any
}

func (f *fakeFuture) Error() error  { <-f.done; return f.err }
func (f *fakeFuture) Index() uint64 { return 0 }
func (f *fakeFuture) Response() any { return f.response }

func (g *fakeGroup) Failed() <-chan struct{} { return g.failCh }

func (g *fakeGroup) Apply(entry []byte) raft.ApplyFuture {
	f := &fakeFuture{entry: entry, done: make(chan struct{})}
	g.mu.Lock()
	g.entries = append(g.entries, f)
	g.mu.Unlock()
	if g.prompt {
		g.settle(f, nil)
	}
	return f
}

// settle answers an entry: applied, or refused with err.
func (g *fakeGroup) settle(f *fakeFuture, err error) {
	if f.err = err; err == nil {
		g.mu.Lock()
		g.index++
		f.response = g.fsm.Apply(&raft.Log{Index: g.index, Type: raft.LogCommand, Data: f.entry})
		g.mu.Unlock()
	}
	close(f.done)
}

func (g *fakeGroup) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.entries)
}

// entry waits for the i-th entry.
func (g *fakeGroup) entry(t *testing.T, i int) *fakeFuture {
	t.Helper()
	eventually(t, fmt.Sprintf("entry %d is proposed", i), func() bool { return g.count() > i })
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries[i]
}

func (g *fakeGroup) get(id uint64) int64 {
	var row [1]int64
	g.fsm.BatchingFSM.(*counters.Machine).Table().Get(id, row[:])
	return row[0]
}

func testMetrics(t *testing.T) *Metrics {
	t.Helper()
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func testConfig(g Group, rounds *Rounds, fsm *counters.Machine, m *Metrics) Config {
	logger := slog.New(slog.DiscardHandler)
	return Config{Group: g, Rounds: rounds, Kind: codec.KindCounters, Clock: NewClock(time.Now(), fsm.LogTime, logger), Limits: func() dedup.Limits { return limits }, Metrics: m, Logger: logger}
}

// newFakeProposer returns a proposer that the test must close.
func newFakeProposer(t *testing.T) (*Proposer, *fakeGroup) {
	t.Helper()
	m := testMetrics(t)
	fsm := counters.New(raftfsm.Places{})
	g := &fakeGroup{fsm: TimedFSM{BatchingFSM: fsm, Metrics: m}, failCh: make(chan struct{})}
	return New(testConfig(g, NewRounds(nil), fsm, m)), g
}

// sectionOf returns a request with the given number of ops. Each op adds 1 to column 0 of id.
func sectionOf(id uint64, ops int) *raftfsm.RequestWriter {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	for range ops {
		counters.Ops{{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, id, 0)
	}
	return &w
}

func submit(p *Proposer, id uint64, ops, width int) (*Proposal, error) {
	w := sectionOf(id, ops)
	return p.Submit(w.Section(), w.Ops(), false, width)
}

func mustSubmit(t *testing.T, p *Proposer, id uint64, ops, width int) *Proposal {
	t.Helper()
	q, err := submit(p, id, ops, width)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// flightsOps is the number of ops that fillFlights proposes.
const flightsOps = 1 + secondEntryOps

// fillFlights proposes entries with ops on id 0 until the maximal number is in flight: first an
// entry of one op, then an entry of secondEntryOps ops.
func fillFlights(t *testing.T, p *Proposer, g *fakeGroup) []*Proposal {
	t.Helper()
	all := []*Proposal{mustSubmit(t, p, 0, 1, 0)}
	g.entry(t, 0)
	for range secondEntryOps {
		all = append(all, mustSubmit(t, p, 0, 1, 0))
	}
	g.entry(t, EntriesInFlightMax-1)
	return all
}

func waitFor(p *Proposer, q *Proposal, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	return q.Wait(timer)
}

// mustBeIdle checks that a proposer that has answered everything counts no proposals, space or
// entries.
func mustBeIdle(t *testing.T, p *Proposer) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	u := &p.mu.queue
	for name, l := range map[string]*line{"small": &u.small, "large": &u.large} {
		if l.withdrawn != 0 || len(l.waiting) != 0 {
			t.Errorf("idle, but the line of %s ones has %d, %d withdrawn", name, len(l.waiting), l.withdrawn)
		}
	}
	if waiting, load := u.waiting(); waiting != 0 || load.ops != 0 || load.bytes != 0 || p.mu.inFlight != 0 {
		t.Errorf("idle, but %d wait, %+v, and %d are in flight", waiting, load, p.mu.inFlight)
	}
	if u.load != (load{}) || u.largeLoad != (load{}) {
		t.Errorf("idle, but %+v is counted, %+v of large ones", u.load, u.largeLoad)
	}
}

// Requests that arrive while entries are in flight 1. become one entry, 2. in order of arrival, 3.
// and get their own rows, with at least the width that they requested.
func TestProposerGroupsWhatWaits(t *testing.T) {
	p, g := newFakeProposer(t)
	first := fillFlights(t, p, g)
	var waiting []*Proposal
	for i := range 100 {
		waiting = append(waiting, mustSubmit(t, p, 0, 1+i%3, i%2))
	}
	if n := g.count(); n != EntriesInFlightMax {
		t.Fatalf("%d entries are in flight", n)
	}
	for i := range EntriesInFlightMax + 1 {
		g.settle(g.entry(t, i), nil)
	}
	want := int64(0)
	for i, q := range append(first, waiting...) {
		if err := waitFor(p, q, must.BecomeMax); err != nil {
			t.Fatal(err)
		}
		for op := range q.Ops {
			want++
			if q.Width > 0 && q.Row(op, 1)[0] != want {
				t.Fatalf("request %d op %d: row %v, want %d", i, op, q.Row(op, 1), want)
			}
		}
	}
	p.Close()
	if n := g.count(); n != EntriesInFlightMax+1 {
		t.Errorf("%d entries", n)
	}
	mustBeIdle(t, p)
}

// A group proposes an entry in its turn, or at once if the entry is large enough, even while
// another is in flight.
func TestEntryIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		inFlight int
		turn     uint64
		waiting  []int // number of ops of each waiting proposal
		closed   bool
		want     bool
	}{
		"nothing waits":                     {turn: 1, want: false},
		"one, before its turn":              {waiting: []int{1}, want: false},
		"one":                               {turn: 1, waiting: []int{1}, want: true},
		"a large one, before its turn":      {waiting: []int{secondEntryOps}, want: true},
		"one, at the end":                   {waiting: []int{1}, closed: true, want: true},
		"nothing, at the end":               {closed: true, want: false},
		"beside another, one":               {inFlight: 1, waiting: []int{1}, want: false},
		"beside another, nearly enough":     {inFlight: 1, waiting: []int{1, secondEntryOps - 2}, want: false},
		"beside another, enough":            {inFlight: 1, waiting: []int{1, secondEntryOps - 1}, want: true},
		"beside another, one at the end":    {inFlight: 1, waiting: []int{1}, closed: true, want: true},
		"beside as many as may, enough":     {inFlight: EntriesInFlightMax, waiting: []int{secondEntryOps}, want: false},
		"beside as many as may, at the end": {inFlight: EntriesInFlightMax, waiting: []int{1}, closed: true, want: false},
	} {
		p := &Proposer{round: NewRounds(nil).join(nil)}
		p.round.turn.Store(c.turn)
		p.mu.inFlight, p.mu.closed = c.inFlight, c.closed
		for _, ops := range c.waiting {
			q := &Proposal{Ops: ops}
			p.mu.queue.lineOf(q).push(q)
		}
		if got := p.dueLocked(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The proposer does not wait for ever for callers that do not return or that withdraw.
func TestEntryDoesNotWaitForThoseWhoStayAway(t *testing.T) {
	p, g := newFakeProposer(t)
	mustSubmit(t, p, 1, 1, 0)
	g.entry(t, 0)
	for range 100 {
		mustSubmit(t, p, 1, 1, 0)
	}
	g.settle(g.entry(t, 0), nil)
	g.settle(g.entry(t, 1), nil)
	q := mustSubmit(t, p, 1, 1, 0)
	g.settle(g.entry(t, 2), nil)
	if err := waitFor(p, q, must.BecomeMax); err != nil || g.get(1) != 102 {
		t.Errorf("%v, %d were counted", err, g.get(1))
	}
	p.Close()
	mustBeIdle(t, p)
}

func TestProposerClosesEntriesAtTheirBounds(t *testing.T) {
	p, g := newFakeProposer(t)
	fillFlights(t, p, g)
	const some = 1000
	for _, ops := range []int{EntryOpsMax - some, some, EntryOpsMax + 5, some, some} {
		if q := mustSubmit(t, p, 1, ops, 0); !q.large() {
			t.Fatal("they are to wait in one line")
		}
	}
	want := []int{EntryOpsMax, EntryOpsMax + 5, 2 * some}
	var got []int
	for i := range EntriesInFlightMax + len(want) {
		f := g.entry(t, i)
		before := g.get(1)
		g.settle(f, nil)
		if i >= EntriesInFlightMax {
			got = append(got, int(g.get(1)-before))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("entries of %v ops, want %v", got, want)
	}
	p.Close()
	mustBeIdle(t, p)
}

func TestProposerIsBounded(t *testing.T) {
	settleAll := func(t *testing.T, p *Proposer, g *fakeGroup) {
		t.Helper()
		closed := make(chan struct{})
		go func() { p.Close(); close(closed) }()
		for i := 0; ; i++ {
			eventually(t, "the proposer goes on", func() bool {
				select {
				case <-closed:
					return true
				default:
					return g.count() > i
				}
			})
			select {
			case <-closed:
				mustBeIdle(t, p)
				return
			default:
				g.settle(g.entry(t, i), nil)
			}
		}
	}
	t.Run("by ops", func(t *testing.T) {
		p, g := newFakeProposer(t)
		fillFlights(t, p, g)
		mustSubmit(t, p, 1, QueueOpsMax-flightsOps, 0)
		if _, err := submit(p, 1, 1, 0); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("one op too many: %v", err)
		}
		settleAll(t, p, g)
	})
	t.Run("by bytes", func(t *testing.T) {
		p, g := newFakeProposer(t)
		fillFlights(t, p, g)
		p.mu.Lock()
		room := QueueBytesMax - p.mu.queue.load.bytes
		p.mu.queue.load.bytes += room // as if other requests used the space
		p.mu.Unlock()
		if _, err := submit(p, 1, 1, 0); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("one byte too many: %v", err)
		}
		p.mu.Lock()
		p.mu.queue.load.bytes -= room
		p.mu.Unlock()
		settleAll(t, p, g)
	})
	t.Run("without ops", func(t *testing.T) {
		p, g := newFakeProposer(t)
		for range QueueOpsMax {
			mustSubmit(t, p, 0, 0, 0)
		}
		if _, err := submit(p, 0, 0, 0); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("one read too many: %v", err)
		}
		settleAll(t, p, g)
	})
	t.Run("an empty queue takes anything", func(t *testing.T) {
		p, g := newFakeProposer(t)
		q := mustSubmit(t, p, 1, QueueOpsMax+1, 0)
		g.settle(g.entry(t, 0), nil)
		if err := waitFor(p, q, must.BecomeMax); err != nil {
			t.Error(err)
		}
		mustSubmit(t, p, 1, QueueOpsMax+1, 0) // once a proposal is answered, its space is free
		g.settle(g.entry(t, 1), nil)
		p.Close()
		mustBeIdle(t, p)
	})
}

func TestDeadlineInTheQueueWithdraws(t *testing.T) {
	p, g := newFakeProposer(t)
	fillFlights(t, p, g)
	p.mu.Lock()
	inFlight := p.mu.queue.load.bytes
	p.mu.Unlock()
	kept := mustSubmit(t, p, 1, 1, 0)
	for range 1000 {
		q := mustSubmit(t, p, 2, 1, 0)
		if err := waitFor(p, q, 0); !errors.Is(err, errs.ErrOverloaded) || !errors.Is(err, errs.ErrTooLate) {
			t.Fatalf("withdrawn: %v", err)
		}
		p.mu.Lock()
		waiting, bytes := len(p.mu.queue.small.waiting), p.mu.queue.load.bytes-inFlight
		p.mu.Unlock()
		if waiting > 4 || bytes > 100 {
			t.Fatalf("%d requests and %d bytes wait, one is meant to", waiting, bytes)
		}
	}
	last := mustSubmit(t, p, 3, 1, 0)
	for i := range EntriesInFlightMax + 1 {
		g.settle(g.entry(t, i), nil)
	}
	for _, q := range []*Proposal{kept, last} {
		if err := waitFor(p, q, must.BecomeMax); err != nil {
			t.Error(err)
		}
	}
	p.Close()
	if one, two, three := g.get(1), g.get(2), g.get(3); one != 1 || two != 0 || three != 1 {
		t.Errorf("counts %d, %d, %d: a withdrawn request was proposed, or another was not", one, two, three)
	}
	mustBeIdle(t, p)
}

func TestDeadlineInFlightIsUnknown(t *testing.T) {
	p, g := newFakeProposer(t)
	all := fillFlights(t, p, g)
	for _, q := range all {
		if err := waitFor(p, q, 0); !errors.Is(err, errs.ErrOutcomeUnknown) {
			t.Errorf("given up: %v", err)
		}
	}
	for i := range EntriesInFlightMax {
		g.settle(g.entry(t, i), nil)
	}
	p.Close()
	if got := g.get(0); got != int64(len(all)) {
		t.Errorf("count %d: they were applied", got)
	}
	mustBeIdle(t, p)
}

// Only the caller of a Pending proposal can answer it, even a moment after the deadline.
func TestDeadlineOfAPendingProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Pending()
		go func() {
			time.Sleep(2 * time.Second)
			q.Err = errs.ErrNoLeader
			q.Settle()
		}()
		if err := waitFor(nil, q, time.Second); !errors.Is(err, errs.ErrNoLeader) {
			t.Errorf("told %v", err)
		}
	})
}

func TestProposerTellsErrorsApart(t *testing.T) {
	for _, test := range []struct{ answer, want error }{
		{errs.ErrGroupClosed, errs.ErrNoLeader},
		{raft.ErrNotLeader, errs.ErrNoLeader},
		{raft.ErrEnqueueTimeout, errs.ErrNoLeader},
		{raft.ErrLeadershipTransferInProgress, errs.ErrNoLeader},
		{raft.ErrLeadershipLost, errs.ErrOutcomeUnknown},
		{raft.ErrRaftShutdown, errs.ErrOutcomeUnknown},
		{raft.ErrAbortedByRestore, errs.ErrOutcomeUnknown},
		{errBrokenDisk, errs.ErrOutcomeUnknown},
	} {
		t.Run(test.answer.Error(), func(t *testing.T) {
			p, g := newFakeProposer(t)
			q := mustSubmit(t, p, 1, 1, 0)
			g.settle(g.entry(t, 0), test.answer)
			err := waitFor(p, q, must.BecomeMax)
			if !errors.Is(err, test.want) || errors.Is(err, errs.ErrNoLeader) == errors.Is(err, errs.ErrOutcomeUnknown) {
				t.Errorf("told %v, want %v", err, test.want)
			}
			p.Close()
			mustBeIdle(t, p)
		})
	}
}

func TestFailedGroupLeavesOutcomesUnknown(t *testing.T) {
	p, g := newFakeProposer(t)
	all := fillFlights(t, p, g)
	waiting := mustSubmit(t, p, 1, 1, 0)
	close(g.failCh) // the group's futures never complete
	for _, q := range append(all, waiting) {
		if err := waitFor(p, q, must.BecomeMax); !errors.Is(err, errs.ErrOutcomeUnknown) {
			t.Errorf("told %v", err)
		}
	}
	p.Close()
	mustBeIdle(t, p)
	for i := range g.count() {
		g.settle(g.entry(t, i), raft.ErrRaftShutdown) // ends the waiting goroutines
	}
}

// A request that arrives during Close is either refused or answered.
func TestProposerCloseAnswersEverything(t *testing.T) {
	for range 300 {
		p, g := newFakeProposer(t)
		g.prompt = true
		var wg sync.WaitGroup
		var taken atomic.Int64
		for range 4 {
			wg.Go(func() {
				for {
					q, err := submit(p, 0, 1, 0)
					if errors.Is(err, errs.ErrDraining) {
						return
					}
					taken.Add(1)
					if err := waitFor(p, q, must.BecomeMax); err != nil {
						t.Errorf("answered %v", err)
					}
				}
			})
		}
		for taken.Load() < 4 {
			time.Sleep(10 * time.Microsecond)
		}
		p.Close()
		p.Close()
		wg.Wait()
		if got := g.get(0); got != taken.Load() {
			t.Fatalf("%d requests were taken, %d applied", taken.Load(), got)
		}
		mustBeIdle(t, p)
	}
}

// The callers have short deadlines, and the log applies, refuses and loses entries:
//
//  1. each acknowledged op is applied;
//  2. any other applied op has an unknown outcome;
//  3. the counts in answers increase;
//  4. no space stays reserved.
func TestProposerUnderStress(t *testing.T) {
	p, g := newFakeProposer(t)
	stop := make(chan struct{})
	var settler sync.WaitGroup
	settler.Go(func() {
		r := rand.New(rand.NewPCG(1, 1))
		for i := 0; ; {
			if g.count() == i {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Microsecond):
				}
				continue
			}
			f := g.entry(t, i)
			i++
			if r.IntN(4) == 0 {
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
			}
			switch r.IntN(8) {
			case 0:
				g.settle(f, raft.ErrNotLeader)
			case 1:
				g.settle(f, raft.ErrLeadershipLost)
			default:
				g.settle(f, nil)
			}
		}
	})
	var acknowledged, unknown atomic.Int64
	var callers sync.WaitGroup
	for c := range 24 {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(c)))
			last := int64(0)
			for range 150 {
				q, err := submit(p, 9, 3, 1)
				if err != nil {
					t.Error(err)
					return
				}
				switch err := waitFor(p, q, time.Duration(r.IntN(1500))*time.Microsecond); {
				case err == nil:
					acknowledged.Add(3)
					if got := q.Row(0, 1)[0]; got <= last || q.Row(2, 1)[0] != got+2 {
						t.Errorf("rows %d … %d after %d", got, q.Row(2, 1)[0], last)
					}
					last = q.Row(2, 1)[0]
				case errors.Is(err, errs.ErrOutcomeUnknown):
					unknown.Add(3)
				case !errors.Is(err, errs.ErrNoLeader) && !errors.Is(err, errs.ErrOverloaded):
					t.Errorf("told %v", err)
				}
			}
		})
	}
	callers.Wait()
	p.Close()
	close(stop)
	settler.Wait()
	got, least := g.get(9), acknowledged.Load()
	if got < least || got > least+unknown.Load() {
		t.Errorf("count %d, acknowledged %d, unknown %d", got, least, unknown.Load())
	}
	if least == 0 {
		t.Error("nothing was acknowledged")
	}
	mustBeIdle(t, p)
}

// If the last stamped entry is a second old, the next entry has a stamp, even if no request needs
// one.
func TestEntriesAreStamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newFakeProposer(t)
		g.prompt = true
		defer p.Close()
		for i, test := range []struct {
			pause   time.Duration
			stamped bool
		}{{0, true}, {stampEvery / 4, false}, {stampEvery / 4, false}, {stampEvery / 2, true}, {time.Hour, true}, {0, false}} {
			time.Sleep(test.pause)
			if err := waitFor(p, mustSubmit(t, p, 7, 1, 0), time.Minute); err != nil {
				t.Fatal(err)
			}
			_, _, sections, err := codec.OpenEntry(g.entry(t, i).entry)
			if err != nil {
				t.Fatal(err)
			}
			if stamped := sections[0] == codec.SectionClock; stamped != test.stamped {
				t.Errorf("entry %d, %v after the one before: stamped %v", i, test.pause, stamped)
			}
		}
	})
}
