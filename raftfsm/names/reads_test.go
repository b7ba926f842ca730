package names

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/spill"
)

// Texts are assigned, blocks move to disk, and the replica restores its own snapshots, while readers ask:
//
//  1. a number below Next has its text, because none is erased;
//  2. a text that a reader has seen has the same number from then on;
//  3. a text of an applied entry is known.
func TestReadsDuringWrites(t *testing.T) {
	store, err := cold.Open(cold.Config{Dir: "cold", FS: vfs.NewCrashableMem(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	must.Do(t, err)
	m := New(spill.Place{Store: store, Group: 1, Tight: func() bool { return true }})
	textOf := func(number uint64) string { return fmt.Sprintf("text %d", number) }
	var applied atomic.Uint64 // all numbers up to it
	var stopped atomic.Bool
	var reading sync.WaitGroup
	for reader := range uint64(3) {
		reading.Go(func() { // ends when stopped is set
			rnd := rand.New(rand.NewPCG(reader, 1))
			for !stopped.Load() {
				known := applied.Load()
				byNumber := TextsQuery{Numbers: make([]uint64, 8)}
				byText := NumbersQuery{Texts: make([]string, 8)}
				for i := range byNumber.Numbers {
					byNumber.Numbers[i] = 1 + rnd.Uint64N(known+200)
					if i < 4 {
						byNumber.Numbers[i] = known + uint64(i) // the newest ones
					}
					byText.Texts[i] = textOf(byNumber.Numbers[i])
				}
				deadline := time.Now().Add(must.BecomeMax)
				if err := errors.Join(byNumber.Answer(m, nil, true, deadline), byText.Answer(m, nil, true, deadline)); err != nil {
					t.Error(err)
					return
				}
				for i, number := range byNumber.Numbers {
					text, found := byNumber.Texts[i], byText.Numbers[i]
					if text != "" && text != textOf(number) || text == "" && number > 0 && number < byNumber.Next {
						t.Errorf("number %d has text %q, and the next number is %d", number, text, byNumber.Next)
					}
					if found != number && found != 0 || found == 0 && number > 0 && (number <= known || text != "") {
						t.Errorf("text of number %d has number %d, after %d", number, found, known)
					}
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for round := 0; round < 300 && !t.Failed(); round++ {
		ops := make([]Op, 1+rnd.IntN(150))
		for i := range ops {
			ops[i] = Op{Kind: Assign, Text: textOf(applied.Load() + 1 + uint64(i))}
		}
		apply(m, ops...)
		applied.Add(uint64(len(ops)))
		switch {
		case round%20 == 19:
			must.Do(t, rafttest.Restore(m, rafttest.Persisted(t, m)))
		case round%3 == 2:
			_, err := m.Bodies().Spill(0, math.MaxInt64, func() bool { return true })
			must.Do(t, err)
		}
	}
	stopped.Store(true)
	reading.Wait()
	m.Close()
	must.Do(t, store.Close())
}
