package bulk

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/countd/countd/client"
)

// shard is a model of a shard: its rows, and what it remembers of one producer.
type shard struct {
	judged map[uint64]bool
	high   uint64
	floor  uint64 // the shard refuses lower numbers, because it has forgotten the producer
	rows   map[int]int
}

func (s *shard) apply(seq uint64, rows map[int]int) {
	if seq < s.floor || seq <= s.high && s.high-seq >= client.Window || s.judged[seq] {
		return
	}
	s.judged[seq], s.high = true, max(s.high, seq)
	for row, value := range rows {
		s.rows[row] = value
	}
}

// request is a write. It may reach each of its shards at a different time.
type request struct {
	seq  uint64
	rows map[int]int
}

// Runs end at random writes. A write may reach only some shards, and may reach a shard late and
// several times. These properties hold:
//
//  1. no late write changes values that the last run wrote, or that were written after it;
//  2. a run with no open number always gets a number.
func TestLateWritesOfEarlierRunsChangeNothing(t *testing.T) {
	const shards, rows, runsMax = 3, 12, 6
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 29))
		var all [shards]*shard
		for i := range all {
			all[i] = &shard{judged: map[uint64]bool{}, rows: map[int]int{}}
		}
		deliver := func(r request, to int) {
			part := map[int]int{}
			for row, value := range r.rows {
				if row%shards == to {
					part[row] = value
				}
			}
			if len(part) > 0 {
				all[to].apply(r.seq, part)
			}
		}
		var late []request
		var kept Fence // the progress file
		position := 0
		value := 0
		for run := 1; ; run++ {
			kept = kept.Next() // a run saves its fence before its first request
			w := newFencedWriter(kept, client.Retry{})
			last := run == runsMax
			row := position
			for row < rows {
				seq, freed := w.tryTake()
				if freed != nil {
					t.Fatal("no number is free, and none is open")
				}
				value++
				r := request{seq, map[int]int{}}
				for n := 1 + random.IntN(4); n > 0 && row < rows; n-- {
					r.rows[row] = value
					row++
				}
				late = append(late, r)
				for to := range all { // before r, a random earlier request may arrive
					if l := late[random.IntN(len(late))]; random.IntN(3) == 0 {
						deliver(l, to)
					}
				}
				if !last && random.IntN(4) == 0 { // the run is killed; at most one shard has received r
					deliver(r, random.IntN(shards))
					break
				}
				for to := range all {
					deliver(r, to)
				}
				w.settle(seq)
				if random.IntN(3) == 0 {
					position = row // the run saves its progress
				}
			}
			if random.IntN(4) == 0 { // --restart, or another file
				position = 0
			}
			if random.IntN(5) == 0 { // the producer was idle so long that the shards forget it
				for _, s := range all {
					s.floor, s.judged = s.high+1, map[uint64]bool{}
				}
			}
			if last {
				break
			}
		}
		want := map[int]int{}
		for _, s := range all {
			for row := range s.rows {
				s.rows[row] += 1000 // increments after the last run
				want[row] = s.rows[row]
			}
		}
		random.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
		for _, r := range late {
			for to := range all {
				deliver(r, to)
			}
		}
		for row, value := range want {
			if got := all[row%shards].rows[row]; got != value {
				t.Fatalf("seed %d: row %d is %d, want %d", seed, row, got, value)
			}
		}
	}
}

func TestWindow(t *testing.T) {
	w := newFencedWriter(newFence(), client.Retry{})
	var open []uint64
	for n := range client.Window {
		seq, err := w.take(t.Context())
		if err != nil || seq != uint64(n+1) {
			t.Fatalf("number %d is %d, %v", n, seq, err)
		}
		open = append(open, seq)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w.settle(open[5])
	if _, err := w.take(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("a number outside of the window: %v", err)
	}
	took := make(chan uint64)
	go func() {
		seq, _ := w.take(t.Context())
		took <- seq
	}()
	w.settle(open[0])
	if seq := <-took; seq != client.Window+1 {
		t.Fatalf("the next number is %d", seq)
	}
}

func TestNext(t *testing.T) {
	if first := (Fence{}).Next(); first.Producer == "" || first.Base != 0 {
		t.Errorf("the first is %+v", first)
	}
	f := newFence()
	for range 1000 {
		next := f.Next()
		if next.Producer != f.Producer || next.Base < f.Base+runNumbers {
			t.Fatalf("after %+v comes %+v", f, next)
		}
		f = next
	}
	if end := (Fence{f.Producer, math.MaxUint64 - runNumbers}).Next(); end.Producer == f.Producer || end.Base != 0 {
		t.Errorf("after the last numbers comes %+v", end)
	}
	w := newFencedWriter(Fence{"p", runNumbers}, client.Retry{})
	if seq, _ := w.take(t.Context()); seq < runNumbers+client.Window {
		t.Errorf("the first number of a later run is %d", seq)
	}
}
