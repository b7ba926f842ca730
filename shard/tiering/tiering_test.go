package tiering

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/errs"
)

func TestIDLayouts(t *testing.T) {
	now := time.Date(2013, 12, 1, 0, 0, 0, 0, time.UTC)
	at := func(l IDLayout, age time.Duration) uint64 { return l.FirstAt(now.Add(-age)) }
	for _, c := range []struct {
		layout string
		id     uint64
		want   bool // a row of that id is older than a day
	}{
		{"weibo", 3342819171543700, true}, // 2011
		{"weibo", at(LayoutWeibo, 25*time.Hour), true},
		{"weibo", at(LayoutWeibo, 23*time.Hour), false},
		{"weibo", at(LayoutWeibo, 0), false},
		{"weibo", 4356289951672851, false},    // 2019, later than the test's now
		{"weibo", 109091785468, false},        // an older form of ids
		{"weibo", 5624750572560875869, false}, // another older form of ids
		{"weibo", 404279823394832384, false},  // a Twitter id of 2013
		{"weibo", 1385856000000000, false},    // microseconds since 1970
		{"weibo", 1, false},
		{"weibo", 999_999_999, false},
		{"weibo", 1_000_000_000, false},
		{"twitter", 1000, false},
		{"twitter", 9_999_999_999, false},
		{"twitter", 3342819171543700, false}, // a Weibo id of 2011
		{"twitter", 29700859247, false},      // a Twitter id from before the layout
		{"20:0:1s", 1, false},
		{"twitter", at(LayoutTwitter, 25*time.Hour), true},
		{"twitter", at(LayoutTwitter, 23*time.Hour), false},
		{"none", 1, false},
		{"20:515483463:1s", 3342819171543700 >> 2, true},
		{"0:0:1s", uint64(now.Unix()) - 90_000, true},
		{"0:0:1s", uint64(now.Unix()) - 80_000, false},
	} {
		l, err := ParseIDLayout(c.layout)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.String(); got != c.layout {
			t.Errorf("%s is written %s", c.layout, got)
		}
		for _, shards := range []int{1, 4, 64} {
			key := c.id / uint64(shards)
			if got := l.old(now, 24*time.Hour, uint64(shards))(key, key); got != c.want {
				t.Errorf("%s: id %d of %d shards is old: %v", c.layout, c.id, shards, got)
			}
		}
	}
	old := LayoutWeibo.old(now, 24*time.Hour, 3)
	timed := LayoutWeibo.firstKey(3)
	for _, c := range []struct {
		first, last uint64
		want        bool
	}{
		{0, timed - 1, false},
		{0, timed, false},
		{timed - 1, at(LayoutWeibo, 48*time.Hour) / 3, false},
		{timed, at(LayoutWeibo, 48*time.Hour) / 3, true},
		{timed, at(LayoutWeibo, 0) / 3, false},
	} {
		if got := old(c.first, c.last); got != c.want {
			t.Errorf("keys %d to %d of 3 shards are old: %v", c.first, c.last, got)
		}
	}
	for _, text := range []string{"", "x", "64:0:1s", "1:x:1s", "1:0:1ns", "1:0:2h", "1:0", "-1:0:1s", "22:0:1500ns"} {
		if l, err := ParseIDLayout(text); err == nil {
			t.Errorf("%q is %v", text, l)
		}
	}
}

// The goroutine that moves rows pauses for seven times as long as the move took, except
// while memory is tight or the node is stopping.
func TestMovingRowsRests(t *testing.T) {
	room, stopping := &Headroom{}, make(chan struct{})
	tiers := New(Config{Headroom: room, Stopping: stopping})
	began := time.Now()
	tiers.rest(10 * time.Millisecond)
	if took := time.Since(began); took < 70*time.Millisecond {
		t.Errorf("a rest of %v", took)
	}
	ended := make(chan struct{})
	go func() { // ends if both pauses end early
		defer close(ended)
		room.MemoryTight.Store(true)
		tiers.rest(time.Hour)
		room.MemoryTight.Store(false)
		close(stopping)
		tiers.rest(time.Hour)
	}()
	select {
	case <-ended:
	case <-time.After(must.BecomeMax):
		t.Error("there is a rest while memory is tight, or the node is stopping")
	}
}

// A pause leaves the processor to requests. It ends once memory is tight.
func TestRestEndsWhenMemoryIsTight(t *testing.T) {
	room, stopping := &Headroom{}, make(chan struct{})
	tiers := New(Config{Headroom: room, Stopping: stopping})
	rested := make(chan struct{})
	go func() { // ends with the pause
		defer close(rested)
		tiers.rest(time.Hour)
	}()
	select {
	case <-rested:
		t.Fatal("there was no rest")
	case <-time.After(10 * time.Millisecond):
	}
	room.MemoryTight.Store(true)
	select {
	case <-rested:
	case <-time.After(must.BecomeMax):
		t.Error("the rest goes on")
	}
	close(stopping)
}

// A scrub spreads its reads over the pass, never exceeds its rate, and stops with the node.
func TestScrubPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping := make(chan struct{})
		s := &Scrub{stopping: stopping}
		const every = 50 * time.Millisecond
		s.tell(func(s *ColdScrub) { s.PassBytes, s.PassOf = 100<<10, 200<<10 })
		began := time.Now()
		pause := s.pause(began, every)
		must.Do(t, pause(scrubPieceBytes-1))
		if took := time.Since(began); took > 0 {
			t.Errorf("less than a piece took %v", took)
		}
		must.Do(t, pause(1))
		if took := time.Since(began); took < every/2 {
			t.Errorf("half of a pass of %v took %v", every, took)
		}
		began = time.Now()
		must.Do(t, pause(1<<20))
		if took := time.Since(began); took < time.Second/8 {
			t.Errorf("1 MiB took %v", took)
		}
		s.tell(func(s *ColdScrub) { s.PassBytes = 200 << 10 })
		pause = s.pause(time.Now(), time.Hour)
		close(stopping)
		if err := pause(scrubPieceBytes); !errors.Is(err, errs.ErrDraining) {
			t.Errorf("a node that is stopping: %v", err)
		}
	})
}
