package tiering

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine/pebbledb"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/metric"
)

const (
	// FeedIdleDefault is the idle time after which a feed leaves memory: a user who has not
	// polled for a week is unlikely to poll within the hour.
	FeedIdleDefault = 7 * 24 * time.Hour
	// FeedIdleMin and FeedIdleMax bound Config.FeedIdle, which may also be 0. Feeds count seconds
	// in 32 bits, which is enough for FeedIdleMax.
	FeedIdleMin = time.Second
	FeedIdleMax = 100 * 365 * 24 * time.Hour

	// spillTick is how often Run advances the clock of feeds and checks memory. Headroom
	// checks twice as often.
	spillTick = time.Second
	// Run checks all bodies feedLookShare times in the idle time, and at least every feedLookMax.
	// A check takes about 10 ns for each body.
	feedLookShare = 8
	feedLookMax   = 10 * time.Minute
	// feedReliefShare is the extra share of the bodies that leaves memory while it is tight, so
	// that returning bodies fit. Bodies that were used within FeedBusy stay, because clients that
	// poll use theirs more often.
	feedReliefShare = 16
	FeedBusy        = time.Minute
)

// Round is the state of Run between two ticks.
type Round struct {
	looked  time.Duration // when Run last checked all bodies, by Spill.Time
	Cycles  uint64        // of the garbage collector when memory was last relieved
	Relieve func() bool   // reports whether memory is tight
}

// Spill moves idle feeds and outboxes out of memory, to the store of cold rows. It needs no lock,
// because its fields do not change.
//
// The node runs Run in a goroutine, and waits for its end.
type Spill struct {
	Tiering *Tiering         // has the store of cold rows
	Idle    time.Duration    // how long a feed or an outbox stays in memory unused; 0 for ever
	Bodies  func() []*Bodies // the bodies on this node now
	Began   time.Time        // when Time was FeedBusy
}

// Place returns where the idle bodies of a group are stored.
func (s *Spill) Place(group uint32) spill.Place {
	if s.Idle == 0 {
		return spill.Place{}
	}
	return spill.Place{Store: s.Tiering.store.Load(), Group: group, Tight: s.tight}
}

// Begin sets the clock of a newly opened shard to FeedBusy before the present time. None of its
// bodies has been used yet, so none counts as busy.
func (s *Spill) Begin(shard *spill.Shard) { shard.Tick(uint32((s.Time() - FeedBusy) / time.Second)) }

// Time returns the time on the clock of feeds, which begins at FeedBusy.
func (s *Spill) Time() time.Duration { return time.Since(s.Began) + FeedBusy }

// Run moves idle bodies out of memory and, near the memory limit, the bodies that have been idle
// the longest. Open starts it; Close stops it and waits.
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

// tight reports whether bodies must leave memory because it is short.
func (s *Spill) tight() bool { return s.Tiering.cfg.Headroom.MemoryTight.Load() }

// Round is one tick of Run, at time now on the clock of feeds.
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
	// The memory of moved bodies becomes free only after a collection.
	if cycles := headroom.RuntimeMetric("/gc/cycles/total:gc-cycles"); round.Relieve() && cycles != round.Cycles {
		round.Cycles = cycles
		s.Relieve(all, int64(s.Tiering.cfg.Headroom.MemoryOver.Load()))
	}
}

// Relieve moves at least excess bytes of bodies out of memory, and 1/feedReliefShare of all their
// bytes more. It picks the bodies of all shards that have been idle the longest.
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

// moveOut moves bodies of a replica out of memory that were unused for at least the time idle,
// about bytesMax bytes at most.
func (s *Spill) moveOut(r *Bodies, idle time.Duration, bytesMax int64) {
	began := time.Now()
	moved, err := r.Spill(uint32(idle/time.Second), bytesMax, s.Tiering.MayFreeze)
	if err != nil && !errors.Is(err, pebbledb.ErrClosed) {
		r.Logger.Warn(r.label()+" stay in memory, and it is tried again", "err", err)
	}
	if moved > 0 {
		r.Logger.Info(r.label()+" have left memory", "users", moved, "after", time.Since(began).Round(time.Millisecond).String())
	}
}

// CheckFeedIdle returns an error for a Config.FeedIdle outside its bounds.
func CheckFeedIdle(idle time.Duration) error {
	if idle != 0 && (idle < FeedIdleMin || idle > FeedIdleMax) {
		return fmt.Errorf("%v is neither 0 nor %v to %v", idle, FeedIdleMin, FeedIdleMax)
	}
	return nil
}

// Metrics returns the metrics of feeds and outboxes that leave memory and return.
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
		metric.Gauge("countd_feeds_spilled", "Users whose feeds are on disk instead of in memory. countd_replica_rows includes them.", sum(codec.KindFeed, users)),
		metric.Gauge("countd_feeds_spilled_bytes", "Bytes of these feeds on disk.", sum(codec.KindFeed, bytes)),
		metric.Counter("countd_feeds_spilled_total", "Feeds that moved from memory to disk.", sum(codec.KindFeed, spilled)),
		metric.Counter("countd_feeds_returned_total", "Feeds that returned to memory.", sum(codec.KindFeed, returned)),
		metric.Gauge("countd_outboxes_spilled", "Authors whose outboxes are on disk instead of in memory.", sum(codec.KindCounters, users)),
		metric.Gauge("countd_outboxes_spilled_bytes", "Bytes of these outboxes on disk.", sum(codec.KindCounters, bytes)),
		metric.Counter("countd_outboxes_spilled_total", "Outboxes that moved from memory to disk.", sum(codec.KindCounters, spilled)),
		metric.Counter("countd_outboxes_returned_total", "Outboxes that returned to memory.", sum(codec.KindCounters, returned)),
		metric.Counter("countd_feed_reads_total", "Feeds and outboxes that were read from disk.",
			func() uint64 { return s.Tiering.Stats().RecordReads }),
		metric.Counter("countd_feed_read_seconds_total", "Total time of the reads of feeds and outboxes from disk.",
			func() float64 { return s.Tiering.Stats().RecordSeconds }),
	}
}
