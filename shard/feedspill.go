package shard

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/metric"
)

const (
	// FeedIdleDefault is when a feed leaves memory: who has not polled for a week is
	// not expected within the hour.
	FeedIdleDefault = 7 * 24 * time.Hour
	// FeedIdleMin and FeedIdleMax bound Config.FeedIdle, which may be 0 too. Feeds are told
	// the time in seconds, of which 32 bits count for longer.
	FeedIdleMin = time.Second
	FeedIdleMax = 100 * 365 * 24 * time.Hour

	// spillTick is how often feeds are told the time, in seconds, and memory is looked
	// after. It is as often as headroom looks twice.
	spillTick = time.Second
	// All feeds are looked at each part of the idle time, and no less often than
	// feedLookMax: that takes some 10 ns a user.
	feedLookShare = 8
	feedLookMax   = 10 * time.Minute
	// feedReliefShare is what leaves memory while that is tight beyond what must, as a share
	// of the feeds in it: room for those that come back. What somebody has asked for within
	// feedBusy stays: clients that poll do so more often.
	feedReliefShare = 16
	feedBusy        = time.Minute
)

// spillRound is what feedSpill.run knows between two ticks.
type spillRound struct {
	looked  time.Duration // by feedSpill.time, when feeds were looked at for the last time
	cycles  uint64        // of the collector, when memory was relieved for the last time
	relieve func() bool   // memory is tight
}

// feedSpill moves feeds out of memory, to the store of cold rows. It reads which replicas
// there are from the registry.
//
// Its goroutine: run, which Node starts and waits for.
type feedSpill struct {
	registry  *registry
	idle      time.Duration // Config.FeedIdle
	began     time.Time     // of the node: feeds are told the time since
	catalog   *catalog.Catalog
	headroom  *headroom.Headroom
	store     *cold.Store // set before the first replica is opened
	mayFreeze func() bool
	stopping  <-chan struct{}
}

// time is the time that feeds are told, which begins at feedBusy.
func (s *feedSpill) time() time.Duration { return time.Since(s.began) + feedBusy }

// run moves feeds of idle users out of memory and, near the memory limit, those of
// users idle for the longest. Open starts it, Close stops and waits for it.
func (s *feedSpill) run() {
	round := &spillRound{looked: s.time(), relieve: s.tight}
	tick := time.NewTicker(spillTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.round(round, s.time())
		case <-s.stopping:
			return
		}
	}
}

// tight reports whether feeds are to leave memory because that is short. Before the
// cluster's version allows rows to be cold none does: a node that asks for a feed might
// not know that it is to ask once more.
func (s *feedSpill) tight() bool {
	return s.headroom.MemoryTight.Load() && s.catalog.View().ColdRows()
}

// place says where feeds of a group may be beside memory.
func (s *feedSpill) place(group uint32) raftfsm.FeedPlace {
	if s.idle == 0 {
		return raftfsm.FeedPlace{}
	}
	return raftfsm.FeedPlace{Store: s.store, Group: group, Tight: s.tight}
}

// replicas returns this node's replicas of feeds.
func (s *feedSpill) replicas() (all []*localReplica) {
	for _, g := range s.registry.groups.Load().all {
		if r := g.replica.Load(); r != nil && g.kind == codec.KindFeed {
			all = append(all, r)
		}
	}
	return all
}

// round is one tick of run, at a time of feeds.
func (s *feedSpill) round(round *spillRound, now time.Duration) {
	all := s.replicas()
	for _, r := range all {
		r.feed.Tick(uint32(now / time.Second))
	}
	if !s.catalog.View().ColdRows() {
		return
	}
	if now-round.looked >= min(s.idle/feedLookShare, feedLookMax) {
		round.looked = now
		for _, r := range all {
			s.spill(r, s.idle, math.MaxInt64)
		}
	}
	// What has left memory counts once the collector has looked.
	if cycles := headroom.RuntimeMetric("/gc/cycles/total:gc-cycles"); round.relieve() && cycles != round.cycles {
		round.cycles = cycles
		s.relieve(all, int64(s.headroom.MemoryOver.Load()))
	}
}

// relieve moves so many bytes of feeds out of memory, and a share besides, of users of
// all shards who are idle for the longest.
func (s *feedSpill) relieve(all []*localReplica, over int64) {
	var ages raftfsm.FeedAges
	shards := make([]raftfsm.FeedAges, len(all))
	for i, r := range all {
		r.feed.Ages(&shards[i])
		for age, bytes := range shards[i] {
			ages[age] += bytes
		}
	}
	total := ages.Bytes()
	share := min(1, float64(over)/float64(max(1, total))+1.0/feedReliefShare)
	idle := time.Duration(ages.Oldest(int64(share*float64(total)))) * time.Second
	for i, r := range all {
		if bytes := float64(shards[i].Bytes()); bytes > 0 {
			s.spill(r, max(idle, min(feedBusy, s.idle)), int64(share*bytes)+1)
		}
	}
}

// spill moves feeds of a replica out of memory that are idle for so long, about so many
// bytes of them at the most.
func (s *feedSpill) spill(r *localReplica, idle time.Duration, bytesMax int64) {
	began := time.Now()
	users, err := r.feed.Spill(uint32(idle/time.Second), bytesMax, s.mayFreeze)
	if err != nil && !errors.Is(err, cold.ErrClosed) {
		r.logger.Warn("feeds stay in memory, and it is tried again", "err", err)
	}
	if users > 0 {
		r.logger.Info("feeds have left memory", "users", users, "after", time.Since(began).Round(time.Millisecond).String())
	}
}

// CheckFeedIdle returns an error for a Config.FeedIdle that cannot be meant.
func CheckFeedIdle(idle time.Duration) error {
	if idle != 0 && (idle < FeedIdleMin || idle > FeedIdleMax) {
		return fmt.Errorf("%v is neither 0 nor %v to %v", idle, FeedIdleMin, FeedIdleMax)
	}
	return nil
}

// feedMetrics are of what became of feeds.
func (n *Node) feedMetrics() []prometheus.Collector {
	moved := func(value func(spilled, returned uint64) uint64) func() float64 {
		return func() float64 {
			total := uint64(0)
			for _, r := range n.feeds.replicas() {
				total += value(r.feed.Moved())
			}
			return float64(total)
		}
	}
	return []prometheus.Collector{
		metric.Gauge("countd_feeds_spilled", "Users whose feeds are on disk instead of in memory. countd_replica_rows includes them.",
			n.sumReplicas(codec.KindFeed, func(s engine.Stats) uint64 { return s.ColdRows })),
		metric.Gauge("countd_feeds_spilled_bytes", "Bytes of these feeds on disk.",
			n.sumReplicas(codec.KindFeed, func(s engine.Stats) uint64 { return s.ColdBytes })),
		metric.Counter("countd_feeds_spilled_total", "Feeds that moved from memory to disk.",
			moved(func(spilled, _ uint64) uint64 { return spilled })),
		metric.Counter("countd_feeds_returned_total", "Feeds that returned to memory.",
			moved(func(_, returned uint64) uint64 { return returned })),
		metric.Counter("countd_feed_reads_total", "Feeds that were read from disk.",
			n.stored(func(s *cold.Stats) float64 { return float64(s.RecordReads) })),
		metric.Counter("countd_feed_read_seconds_total", "Total time of the reads of feeds from disk.",
			n.stored(func(s *cold.Stats) float64 { return s.RecordSeconds })),
	}
}
