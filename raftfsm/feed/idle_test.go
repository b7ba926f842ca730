package feed

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/spill"
)

// Only feeds that nobody has read or written for the idle time leave memory. The other feeds leave
// once they have been idle for that time too. Marks of feeds on disk take little memory.
func TestIdleFeedsLeaveMemory(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	const users = 3000
	want := fillFeeds(t, r, users, 90)
	for range 5 {
		r.tick()
	}
	for key := range uint64(users / 10) { // a read resets the idle time of these users
		if _, _, inMemory := r.fsm.Followees(nil, key); !inMemory {
			t.Fatalf("user %d is not in memory", key)
		}
	}
	want[users] = randomFeed(rand.New(rand.NewPCG(1, 1)), 5)
	r.fsm.Apply(feedEntry(r.fsm.Applied()+1, Op{Kind: Reset, User: users, Followees: want[users]}))
	if moved := r.spill(6); moved != 0 {
		t.Errorf("%d users who were idle for 5 ticks left memory after 6", moved)
	}
	var ages spill.Ages
	r.fsm.Bodies().Ages(&ages)
	if ages[0] == 0 || ages[3] < 7*ages[0] || ages.Oldest(1) != 4 || ages.Oldest(ages.Bytes()) != 0 {
		t.Errorf("feeds by age: %v", ages)
	}
	if moved := r.spill(5); moved != users-users/10 {
		t.Errorf("%d users left memory", moved)
	}
	for key := range uint64(users) {
		if spilled := key >= users/10; r.fsm.Bodies().IsSpilled(key) != spilled {
			t.Errorf("user %d is on disk: %v", key, !spilled)
		}
	}
	r.tick()
	r.spill(1)
	if s := r.fsm.State(); s.ColdRows != users+1 || s.ColdBytes < users*200 || s.Bytes > 24*users {
		t.Errorf("%+v of %d users", s, users+1)
	}
	r.check(want)
	if spilled, returned := r.fsm.Bodies().Moved(); spilled != users+1 || returned != users+1 {
		t.Errorf("%d feeds left memory, %d came back", spilled, returned)
	}
}

// If each round of Spill moves a part of the feeds, successive rounds move different feeds, even if
// the feeds of earlier rounds have returned to memory.
func TestSpillGoesOn(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	const users, each = 1000, 50
	fillFeeds(t, r, users, each)
	bytes := r.fsm.State().Bytes
	moved := map[uint64]bool{}
	for range 3 {
		n, err := r.fsm.Bodies().Spill(0, int64(bytes/4), func() bool { return true })
		r.must(err)
		if n < users/5 || n > users/3 {
			t.Errorf("%d users of %d left memory at a time", n, users)
		}
		for key := range uint64(users) {
			if r.fsm.Bodies().IsSpilled(key) {
				moved[key] = true
				r.must(r.fsm.Bodies().Warm(context.Background(), key))
			}
		}
	}
	if len(moved) < users*3/5 {
		t.Errorf("%d users of %d left memory", len(moved), users)
	}
	if n, err := r.fsm.Bodies().Spill(0, math.MaxInt64, func() bool { return false }); n > users/5 || err != nil {
		t.Errorf("%d users left memory though nobody might: %v", n, err)
	}
}

// SnapshotBytes is not below the size of a snapshot, with feeds in memory or on disk. The followees
// are drawn from ten million users.
func TestSnapshotBytesOfFeeds(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	rnd := rand.New(rand.NewPCG(1, 1))
	var ops []Op
	for user := range uint64(500) {
		op := Op{Kind: Reset, User: user}
		for id := uint64(0); len(op.Followees) < 90; {
			id += 1 + rnd.Uint64N(2*10_000_000/90)
			op.Followees = append(op.Followees, Followee{ID: id, Posts: rnd.Int64N(2000)})
		}
		ops = append(ops, op)
	}
	r.fsm.Apply(feedEntry(1, ops...))
	for range 2 {
		if told, took := r.fsm.SnapshotBytes(), len(rafttest.Persisted(t, r.fsm)); told < uint64(took) || told > uint64(2*took) {
			t.Errorf("a snapshot takes %d bytes, told %d", took, told)
		}
		r.spill(0)
	}
}
