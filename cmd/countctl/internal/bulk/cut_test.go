package bulk

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/countd/countd/client"
)

// Cuts are acknowledged in any order, and progress is saved now and then. These properties hold:
//
//  1. every cut with a number below progress.seq is acknowledged, and progress.position is the
//     start of cut seq;
//  2. neither progress.seq nor progress.position decreases;
//  3. the number of an admitted cut is below the saved number + client.Window;
//  4. a cut that waits for the window is admitted as soon as progress is saved;
//  5. progress.overflows has the overflows of the cuts with a number below progress.seq.
func TestCuts(t *testing.T) {
	const total, rows, refusedEvery = 2000, 3, 4
	for _, kept := range []bool{true, false} {
		random := rand.New(rand.NewPCG(8, 9))
		c := newCuts(progress{seq: 1, position: Position{Line: 1}}, kept)
		blocked, cancel := context.WithCancel(t.Context())
		cancel()
		var open []*cut
		saved, seqBefore := uint64(1), uint64(1)
		newCut := func(number int, before Position) *cut {
			next := &cut{before: before, after: Position{Line: before.Line + rows, Rows: before.Rows + rows}}
			for range rows {
				next.add(increment{id: client.Number(uint64(number)), deltas: client.Counts{{Column: "like", Value: 1}}})
			}
			return next
		}
		next := newCut(1, Position{Line: 1})
		for made := 0; made < total || len(open) > 0; {
			switch pick := random.IntN(10); {
			case pick < 6 && made < total:
				if err := c.letThrough(blocked, next); err != nil {
					if !errors.Is(err, context.Canceled) || kept && uint64(made+1) < saved+client.Window {
						t.Fatalf("cut %d waits, %d is saved: %v", made+1, saved, err)
					}
					break
				}
				made++
				if next.seq != uint64(made) || kept && next.seq >= saved+client.Window {
					t.Fatalf("cut %d has number %d, %d is saved", made, next.seq, saved)
				}
				open = append(open, next)
				next = newCut(made+1, next.after)
			case pick < 9 && len(open) > 0:
				at := random.IntN(len(open))
				if open[at].seq%refusedEvery == 0 {
					open[at].overflow(client.WriteResult{Refused: open[at].refuseAll()})
				}
				c.ack(open[at])
				open = slices.Delete(open, at, at+1)
			case kept:
				saved = c.progress().seq
				c.saved(saved)
			}
			seq, position, overflows := c.progress().seq, c.progress().position, c.progress().overflows
			want := uint64(made + 1)
			for _, o := range open {
				want = min(want, o.seq)
			}
			if seq != want || seq < seqBefore || position != (Position{Line: 1 + rows*int64(seq-1), Rows: rows * int64(seq-1)}) {
				t.Fatalf("the lowest is %d at %v, want %d", seq, position, want)
			}
			seqBefore = seq
			refused := int64(seq-1) / refusedEvery
			if overflows.Refused.Rows != rows*refused || len(overflows.Refused.IDs) != int(refused) || overflows.Unknown.Rows != 0 {
				t.Fatalf("the lowest is %d, the overflows are %+v", seq, overflows)
			}
		}
	}
}

func FuzzDecodeSession(f *testing.F) {
	f.Add([]byte(`{"version":1,"kind":"add","session":{"producer":"p","seq":1,"batch_rows":5}}`))
	f.Add([]byte(`{"version":1,"kind":"events","events":{"event":"e","time":"t"},"session":{"producer":"p","seq":9,"batch_rows":5,"tick_seconds":0.5,"done":true}}`))
	f.Add([]byte(`{"version":1,"kind":"add","position":{"line":9,"rows":4},"overflows":{"refused":{"rows":3,"ids":["40","48"]}},"session":{"producer":"p","seq":1,"batch_rows":5}}`))
	f.Add([]byte(`{"version":1,"session":{"producer":"p","seq":1,"batch_rows":5}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decodeFileState(text)
		if err != nil {
			return
		}
		if (s.Session == nil) != (s.Kind == KindSet) {
			t.Fatalf("the kind is %q, the session %+v", s.Kind, s.Session)
		}
		if s.Session != nil && (s.Session.Seq == 0 || s.Session.Producer == "" || s.Session.BatchRows < 1 || s.Session.BatchRows > client.WriteOpsMax) {
			t.Fatalf("the session is %+v", s.Session)
		}
		if sum := s.Summary(); sum.Rows < 0 || sum.Rejected < 0 {
			t.Fatalf("the summary is %+v", sum)
		}
	})
}

// An interrupted run sends the cuts that are queued. Otherwise a sender could skip a cut, although
// another sender has sent a cut with a higher number.
func TestQueuedCutsAreSent(t *testing.T) {
	r := &Replay{}
	r.begun.Store(true)
	r.cuts = newCuts(progress{seq: 1}, false)
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	c := &cut{after: Position{Line: 1, Rejected: 1}} // without sums, so that it needs no server
	if err := r.cuts.letThrough(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	queue := make(chan *cut, 1)
	queue <- c
	close(queue)
	r.send(interrupted, queue, func(err error) { t.Error(err) })
	if got := r.cuts.progress().seq; got != 2 {
		t.Errorf("the next run begins with cut %d", got)
	}
}
