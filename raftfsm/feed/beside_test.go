package feed

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/spill"
)

// While feeds are read, written and moved:
//  1. A reader sees one feed that the user had, never a mix of two.
//  2. At the end, each feed is as the last write left it.
//  3. A snapshot contains the feeds as of the moment at which it was taken.
func TestFeedsMoveBesideReadersAndWriters(t *testing.T) {
	t.Parallel()
	const users, rounds = 400, 60
	r := newSpillReplica(t)
	defer r.close()
	fillFeeds(t, r, users, 3)
	feedOf := func(round int) (contents []Followee) {
		for i := range uint64(3 + round%50) {
			contents = append(contents, Followee{i * 7, int64(round)})
		}
		return contents
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	forever := func(do func(*rand.Rand)) {
		rnd := rand.New(rand.NewPCG(3, uint64(rand.Uint32())))
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do(rnd)
				}
			}
		})
	}
	forever(func(*rand.Rand) { r.spill(0) })
	for range 2 {
		forever(func(rnd *rand.Rand) {
			key := rnd.Uint64N(users)
			contents, _, err := r.fsm.Fetch(t.Context(), nil, key)
			if err != nil || len(contents) > 0 && contents[0].ID == 0 && !slices.Equal(contents, feedOf(int(contents[0].Posts))) {
				t.Errorf("user %d follows %v, %v", key, contents, err)
			}
		})
	}
	forever(func(*rand.Rand) {
		view := r.fsm.Bodies().Current().Capture()
		defer view.Close()
		for view.More() {
			if _, _, err := view.Next(); err != nil {
				t.Error(err)
			}
		}
	})
	index := r.fsm.Applied()
	for round := range rounds {
		var ops []Op
		for key := uint64(round % 3); key < users; key += 3 {
			ops = append(ops, Op{Kind: Reset, User: key, Followees: feedOf(round)})
		}
		index++
		if answer, ok := r.fsm.Apply(feedEntry(index, ops...)).(*raftfsm.Result); !ok {
			t.Errorf("%v: %v", answer, r.fsm.Stuck())
			break
		}
		if round%10 == 0 {
			state := r.fsm.State()
			other := New(spill.Place{})
			r.must(rafttest.Restore(other, rafttest.Persisted(t, r.fsm)))
			if got := other.State(); got.Digest != state.Digest {
				t.Errorf("a snapshot has digest %x, want %x", got.Digest, state.Digest)
			}
		}
	}
	close(stop)
	beside.Wait()
	want := map[uint64][]Followee{}
	for key := range uint64(users) {
		for round := rounds - 1; ; round-- {
			if uint64(round%3) == key%3 {
				want[key] = feedOf(round)
				break
			}
		}
	}
	r.check(want)
}

// Feeds are moved while entries remove all feeds and store them again. After each entry, every feed
// is there, unchanged.
func TestFeedsMoveBesideClear(t *testing.T) {
	t.Parallel()
	const users, rounds = 300, 300
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, users, 3)
	ops := []Op{{Kind: Clear}}
	for key, contents := range want {
		ops = append(ops, Op{Kind: Reset, User: key, Followees: contents})
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.spill(0)
			}
		}
	})
	index := r.fsm.Applied()
	for range rounds {
		index++
		if answer, ok := r.fsm.Apply(feedEntry(index, ops...)).(*raftfsm.Result); !ok {
			t.Errorf("%v: %v", answer, r.fsm.Stuck())
			break
		}
		key := uint64(rand.IntN(users))
		if got, _, err := r.fsm.Fetch(context.Background(), nil, key); err != nil || !slices.Equal(got, want[key]) {
			t.Errorf("user %d follows %v, %v", key, got, err)
			break
		}
	}
	close(stop)
	beside.Wait()
	r.check(want)
}
