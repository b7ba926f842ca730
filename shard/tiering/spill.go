package tiering

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

const (
	// FeedIdleDefault is the idle time after which a feed leaves memory. A user who has not polled
	// for a week is unlikely to poll soon.
	FeedIdleDefault = 7 * 24 * time.Hour
	// FeedIdleMin and FeedIdleMax bound shard.Config.FeedIdle, which may also be 0. The clock of
	// feeds counts seconds in 32 bits, which is enough for FeedIdleMax.
	FeedIdleMin = time.Second
	FeedIdleMax = 100 * 365 * 24 * time.Hour

	// spillTick is the interval at which Run advances the clock of feeds and checks memory.
	spillTick = time.Second
	// Run searches for idle bodies feedLookShare times within Spill.Idle, and at least every
	// feedLookMax. A search takes about 10 ns for each body.
	feedLookShare = 8
	feedLookMax   = 10 * time.Minute
	// While memory is tight, a share (1/16) of the bodies leaves memory in addition to the excess,
	// so that there is space for bodies which are used again. Bodies that were used within FeedBusy
	// stay, because a client that polls uses its feed at least that often.
	feedReliefShare = 16
	FeedBusy        = time.Minute
)

// Round is the state of Run between two ticks.
type Round struct {
	looked  time.Duration // time of the last search for idle bodies, by Spill.Time
	Cycles  uint64        // number of garbage collections when Relieve last ran
	Relieve func() bool   // reports whether memory is tight
}

// Spill moves idle feeds and outboxes out of memory, to the store of cold rows. It needs no lock,
// because its fields do not change.
//
// The node runs Run in a goroutine, and waits for its end.
type Spill struct {
	Tiering *Tiering         // has the store of cold rows
	Idle    time.Duration    // time after which an unused feed or outbox leaves memory; 0 for never
	Bodies  func() []*Bodies // returns the present bodies on this node
	Began   time.Time        // start of the node, when Time returned FeedBusy
}

// Place returns the place for the idle bodies of a group; the zero Place if bodies never leave
// memory.
func (s *Spill) Place(group uint32) spill.Place {
	if s.Idle == 0 {
		return spill.Place{}
	}
	return spill.Place{Store: s.Tiering.store.Load(), Group: group, Tight: s.tight, Full: s.Tiering.cfg.Headroom.DiskFull.Load}
}

// Begin sets the clock of a newly opened shard to FeedBusy before the present time. So the bodies
// of the shard do not count as busy before they are used.
func (s *Spill) Begin(shard *spill.Shard) { shard.Tick(uint32((s.Time() - FeedBusy) / time.Second)) }

// Time returns the time on the clock of feeds, which was FeedBusy when the node started.
func (s *Spill) Time() time.Duration { return time.Since(s.Began) + FeedBusy }

// Run moves bodies out of memory when they have been idle for Spill.Idle. Near the memory limit it
// also moves those that have been idle the longest. Open starts it; Close stops it and waits.
func (s *Spill) Run() {
	round := &Round{looked: s.Time(), Relieve: s.tight}
	tick := time.NewTicker(spillTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.Round(round, s.Time())
		case <-s.Tiering.cfg.Stopping:
			return
		}
	}
}

// tight reports whether memory is so short that bodies must leave it.
func (s *Spill) tight() bool { return s.Tiering.cfg.Headroom.MemoryTight.Load() }

// Round runs one tick of Run. The argument now is the time on the clock of feeds.
func (s *Spill) Round(round *Round, now time.Duration) {
	all := s.Bodies()
	for _, r := range all {
		r.Tick(uint32(now / time.Second))
	}
	if now-round.looked >= min(s.Idle/feedLookShare, feedLookMax) {
		round.looked = now
		for _, r := range all {
			s.moveOut(r, s.Idle, math.MaxInt64)
		}
	}
	// Relieve memory at most once between two collections, because only a collection frees the
	// memory of moved bodies.
	if cycles := RuntimeMetric("/gc/cycles/total:gc-cycles"); round.Relieve() && cycles != round.Cycles {
		round.Cycles = cycles
		s.Relieve(all, int64(s.Tiering.cfg.Headroom.MemoryOver.Load()))
	}
}

// Relieve moves excess bytes of bodies out of memory, plus 1/feedReliefShare of the bytes of all
// bodies. Among the bodies of all shards, it chooses those that have been idle the longest.
func (s *Spill) Relieve(all []*Bodies, excess int64) {
	var ages spill.Ages
	shards := make([]spill.Ages, len(all))
	for i, r := range all {
		r.Ages(&shards[i])
		for age, bytes := range shards[i] {
			ages[age] += bytes
		}
	}
	total := ages.Bytes()
	share := min(1, float64(excess)/float64(max(1, total))+1.0/feedReliefShare)
	idle := time.Duration(ages.Oldest(int64(share*float64(total)))) * time.Second
	for i, r := range all {
		if bytes := float64(shards[i].Bytes()); bytes > 0 {
			s.moveOut(r, max(idle, min(FeedBusy, s.Idle)), int64(share*bytes)+1)
		}
	}
}

// moveOut moves a replica's bodies out of memory if they have been unused for at least the duration
// idle. It stops after about bytesMax bytes.
func (s *Spill) moveOut(r *Bodies, idle time.Duration, bytesMax int64) {
	began := time.Now()
	moved, err := r.Spill(uint32(idle/time.Second), bytesMax, func() bool { return !s.Tiering.cfg.Draining.Load() })
	if err != nil && !errors.Is(err, scarce.ErrClosed) {
		r.Logger.Warn(r.label()+" stay in memory, and it is tried again", "err", err)
	}
	if moved > 0 {
		r.Logger.Info(r.label()+" have left memory", "moved", moved, "after", time.Since(began).Round(time.Millisecond).String())
	}
}

// CheckFeedIdle returns an error for a shard.Config.FeedIdle outside its bounds.
func CheckFeedIdle(idle time.Duration) error {
	if idle != 0 && (idle < FeedIdleMin || idle > FeedIdleMax) {
		return fmt.Errorf("%v is neither 0 nor %v to %v", idle, FeedIdleMin, FeedIdleMax)
	}
	return nil
}

// Metrics returns the metrics of feeds and outboxes that leave memory or return to it.
func (s *Spill) Metrics() []prometheus.Collector {
	sum := func(of codec.Kind, value func(*spill.Shard) uint64) func() uint64 {
		return func() (total uint64) {
			for _, r := range s.Bodies() {
				if r.Of == of {
					total += value(r.Shard)
				}
			}
			return total
		}
	}
	users := func(b *spill.Shard) uint64 { return b.Stats().Spilled }
	bytes := func(b *spill.Shard) uint64 { return b.Stats().SpilledBytes }
	spilled := func(b *spill.Shard) uint64 { moved, _ := b.Moved(); return moved }
	returned := func(b *spill.Shard) uint64 { _, moved := b.Moved(); return moved }
	return []prometheus.Collector{
		Gauge("countd_feeds_spilled", "Users whose feeds are on disk instead of in memory. countd_replica_rows includes them.", sum(codec.KindFeed, users)),
		Gauge("countd_feeds_spilled_bytes", "Bytes of these feeds on disk.", sum(codec.KindFeed, bytes)),
		Counter("countd_feeds_spilled_total", "Feeds that moved from memory to disk.", sum(codec.KindFeed, spilled)),
		Counter("countd_feeds_returned_total", "Feeds that returned to memory.", sum(codec.KindFeed, returned)),
		Gauge("countd_outboxes_spilled", "Authors whose outboxes are on disk instead of in memory.", sum(codec.KindCounters, users)),
		Gauge("countd_outboxes_spilled_bytes", "Bytes of these outboxes on disk.", sum(codec.KindCounters, bytes)),
		Counter("countd_outboxes_spilled_total", "Outboxes that moved from memory to disk.", sum(codec.KindCounters, spilled)),
		Counter("countd_outboxes_returned_total", "Outboxes that returned to memory.", sum(codec.KindCounters, returned)),
		Counter("countd_feed_reads_total", "Feeds and outboxes that were read from disk.",
			func() uint64 { return s.Tiering.Stats().RecordReads }),
		Counter("countd_feed_read_seconds_total", "Total time of the reads of feeds and outboxes from disk.",
			func() float64 { return s.Tiering.Stats().RecordSeconds }),
	}
}
