package feed

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm/spill"
)

// BenchmarkSpilledFeeds measures the memory of a user whose feed is on disk, reads of such feeds and of
// feeds in memory, and moves of feeds to disk.
func BenchmarkSpilledFeeds(b *testing.B) {
	const users, each = 100_000, 90
	dir := b.TempDir()
	open := func() *spillReplica {
		r := &spillReplica{t: b}
		var err error
		r.store, err = cold.Open(cold.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
		r.must(err)
		r.fsm = New(spill.Place{Store: r.store, Group: 1, Tight: r.tight.Load})
		return r
	}
	r := open()
	defer r.close()
	fillFeeds(b, r, users, each)
	dst := make([]Followee, 0, each)
	var hot engineStats
	hot.note(r.fsm)
	rnd := rand.New(rand.NewPCG(1, 1))
	b.Run("in memory", func(b *testing.B) {
		for b.Loop() {
			dst, _, _ = r.fsm.Followees(dst[:0], rnd.Uint64N(users))
		}
		b.ReportMetric(hot.perUser, "B/user")
	})
	b.Run("on disk", func(b *testing.B) {
		r.tight.Store(true) // so that no read moves a feed back to memory
		defer r.tight.Store(false)
		r.spill(0)
		var now engineStats
		now.note(r.fsm)
		for b.Loop() {
			var err error
			if dst, _, err = r.fsm.Fetch(b.Context(), dst[:0], rnd.Uint64N(users)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(now.perUser, "B/user")
		b.ReportMetric(now.diskPerUser, "disk-B/user")
	})
	b.Run("on disk and back", func(b *testing.B) {
		keys := rnd.Perm(users)
		for i := 0; b.Loop(); i++ {
			if i%users == 0 && i > 0 {
				b.StopTimer()
				r.spill(0)
				b.StartTimer()
			}
			var err error
			if dst, _, err = r.fsm.Fetch(b.Context(), dst[:0], uint64(keys[i%users])); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("moved out", func(b *testing.B) {
		moved := 0
		for b.Loop() {
			b.StopTimer()
			for key := range uint64(users) {
				r.must(r.fsm.Bodies().Warm(b.Context(), key))
			}
			b.StartTimer()
			moved += r.spill(0)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(moved), "ns/user")
	})
}

// engineStats holds the bytes of a user in memory and on disk.
type engineStats struct{ perUser, diskPerUser float64 }

func (s *engineStats) note(fsm *Machine) {
	state := fsm.State()
	s.perUser = float64(state.Bytes) / float64(state.Rows)
	s.diskPerUser = float64(state.ColdBytes) / max(1, float64(state.ColdRows))
}
