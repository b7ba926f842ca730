package shard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/counters"
)

// A scrape of each node reports its groups and the other nodes.
func TestMetricsOfTheCluster(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	groups := len(all[0].registry.Replicas())
	awaitMetrics(t, "every group is led by one node", func() bool {
		led := 0.0
		for _, n := range all {
			led += metricOf(t, n, "countd_groups_led")
		}
		return led == float64(groups)
	})
	for _, n := range all {
		for name, want := range map[string]float64{
			"countd_replicas":              float64(groups),
			"countd_groups_without_leader": 0,
			"countd_nodes":                 3,
			"countd_nodes_dead":            0,
		} {
			eventually(t, fmt.Sprintf("%s: %s is %v", n.cfg.NodeName, name, want), func() bool { return metricOf(t, n, name) == want })
		}
	}
	alone := 0.0 // groups with a single voter
	for _, g := range all[0].registry.Replicas() {
		if len(g.Voters()) == 1 {
			alone++
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, all[2].Close(ctx))
	mustDo(t, all[1].Close(ctx))
	awaitMetrics(t, "no group of three voters is led with one left", func() bool {
		return metricOf(t, all[0], "countd_groups_without_leader") == float64(groups)-alone && metricOf(t, all[0], "countd_groups_led") == alone
	})
}

// The metric counts the nodes that are dead according to gossip, but never the node itself.
func TestMetricOfDeadNodes(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	n, err := Open(aliveConfig(t, func(string) bool { return !silent.Load() }))
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, n.Close(context.Background())) })
	joinMember(t, []*Node{n}, 2, 2)
	if got := metricOf(t, n, "countd_nodes_dead"); got != 0 {
		t.Errorf("%v nodes are dead, want 0", got)
	}
	silent.Store(true)
	if got := metricOf(t, n, "countd_nodes_dead"); got != 1 {
		t.Errorf("%v nodes are dead, want 1", got)
	}
}

func aliveConfig(t *testing.T, alive func(string) bool) Config {
	cfg := memberConfig(t, t.TempDir(), 1, 2)
	cfg.Alive = alive
	return cfg
}

// The metric is the largest lag of a voter when the leader last asked the voters.
func TestMetricOfLag(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	ks := all[0].Keyspace("posts")
	for range 20 {
		mustDo(t, all[0].Write(ks, once(&Write{Ops: counters.Ops{addTo(1, 0, 1)}, Deadline: soon()})))
	}
	lag := func(progressOf uint64) uint64 { return 100 - min(100, progressOf) }
	if lag(40) != 60 || lag(100) != 0 || lag(130) != 0 {
		t.Errorf("of 100 entries those who applied 40, 100 and 130 lag by %d, %d, %d", lag(40), lag(100), lag(130))
	}
	for _, n := range all {
		n.membership.VotersLag.Store(7)
	}
	awaitMetrics(t, "all that is written is applied everywhere", func() bool {
		for _, n := range all {
			n.LeaderViews(t.Context())
			if metricOf(t, n, "countd_replica_lag_entries") != 0 {
				return false
			}
		}
		return true
	})
}

// The metrics report the bounds of memory and disk, and the bytes that count towards each bound.
func TestMetricsOfRoom(t *testing.T) {
	cfg := memberConfig(t, t.TempDir(), 1, 1)
	cfg.MemoryLimit, cfg.DiskReserve = 4<<30, 1<<20
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, n.Close(context.Background())) })
	if limit, reserve := metricOf(t, n, "countd_memory_limit_bytes"), metricOf(t, n, "countd_disk_reserve_bytes"); limit != 4<<30 || reserve != 1<<20 {
		t.Errorf("limit %v, reserve %v", limit, reserve)
	}
	n.headroom.Look()
	if needs := metricOf(t, n, "countd_memory_needed_bytes"); needs <= 0 || needs >= 4<<30 {
		t.Errorf("needs %v bytes of memory", needs)
	}
	if needs := metricOf(t, n, "countd_disk_needed_bytes"); needs < 1<<20 {
		t.Errorf("needs %v bytes of disk, less than the reserve", needs)
	}
	if free := metricOf(t, n, "countd_disk_free_bytes"); free <= 0 {
		t.Errorf("%v bytes of disk are free", free)
	}
}

// awaitMetrics waits until the function holds returns true.
func awaitMetrics(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(eventuallyMax)
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
