package shard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// keyUses has a key that shard 0 of two judges, and a write of it that adds 1 on both.
type keyUses struct {
	t     *testing.T
	n     *Node
	ks    *Keyspace
	name  []byte
	key   dedup.RequestID
	began time.Time
}

func newKeyUses(t *testing.T) *keyUses {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	u := &keyUses{t: t, n: n, ks: n.Keyspace("posts"), began: time.Now()}
	for tries := 0; tries == 0 || u.key.Shard(2) != 0; tries++ {
		u.name = fmt.Append(nil, "k", tries)
		u.key = dedup.ByKey(u.name)
	}
	return u
}

// advance stamps the log of a shard with a time so many key horizons after the start of the test.
func (u *keyUses) advance(shard int, horizons float64) {
	u.t.Helper()
	at := u.began.Add(time.Duration(horizons * float64(LimitsDefault.KeyHorizon)))
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 0), at, LimitsDefault)
	group := u.n.registry.groups.Load().byFirst[u.ks.FirstGroup].all[shard].replica.Load().group
	mustDo(u.t, group.Apply(codec.AppendChecksum(entry)).Error())
}

func (u *keyUses) write() *Write {
	return &Write{Ops: counters.Ops{addTo(0, 0, 1), addTo(1, 0, 1)}, ID: u.key, Deadline: soon()}
}

func (u *keyUses) wantWrite(duplicate bool) {
	u.t.Helper()
	w := u.write()
	if err := u.n.Write(u.ks, w); err != nil || w.Duplicate != duplicate {
		u.t.Errorf("duplicate %v, %v; want %v", w.Duplicate, err, duplicate)
	}
}

func (u *keyUses) wantCounts(judge, other int64) {
	u.t.Helper()
	if got := mustGet(u.t, u.n, u.ks, ReadOptions{}, 0, 1); got[0] != judge || got[4] != other {
		u.t.Errorf("counts %d and %d, want %d and %d", got[0], got[4], judge, other)
	}
}

// A repeat completes a use of a key late in its horizon. The next use, which the judge takes
// for new, counts on both shards.
func TestNextUseOfAKeyThatARepeatCompletedLate(t *testing.T) {
	t.Parallel()
	u := newKeyUses(t)
	hinder(u.n, u.ks, 1, heldGroup{err: raft.ErrNotLeader})
	for try := 100 * time.Millisecond; ; try *= 2 { // until the judge had enough time
		w, partial := u.write(), (*PartialError)(nil)
		w.Deadline = time.Now().Add(try)
		if err := u.n.Write(u.ks, w); errors.As(err, &partial) && len(partial.Applied) == 1 {
			break
		} else if try > eventuallyMax {
			t.Fatalf("it is not applied in part: %v", err)
		}
	}
	hinder(u.n, u.ks, 1, heldGroup{})
	u.advance(0, 0.9)
	u.advance(1, 0.9)
	u.wantWrite(true)
	u.wantCounts(1, 1)
	u.advance(0, 1.1)
	u.advance(1, 1.1)
	u.wantWrite(false)
	u.wantCounts(2, 2)
	u.wantWrite(true)
	u.wantCounts(2, 2)
}

// A shard whose log was behind at the first use, and has caught up, does not count a repeat
// that comes late in the judge's horizon.
func TestRepeatOnAShardWhoseLogHasCaughtUp(t *testing.T) {
	t.Parallel()
	u := newKeyUses(t)
	behind := u.n.registry.groups.Load().byFirst[u.ks.FirstGroup].all[1]
	reconfigure(u.n, behind, func(cfg *propose.Config) {
		cfg.Clock = propose.NewClock(u.began.Add(-LimitsDefault.KeyHorizon*9/10), behind.replica.Load().fsm.LogTime, cfg.Logger)
	})
	u.wantWrite(false)
	u.advance(0, 0.9)
	u.advance(1, 0.9)
	w := u.write()
	if err := u.n.Write(u.ks, w); err != nil && !errors.Is(err, errs.ErrExpired) {
		t.Errorf("the repeat is told %v", err)
	}
	u.wantCounts(1, 1)
}

// The first use of a key counts on a shard whose log is far behind the judge's or far
// ahead of it, and its repeats do not.
func TestKeyOnShardsWhoseLogsAreFarApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ judge, other float64 }{"ahead": {0, 100}, "behind": {100, 0}} {
		t.Run(name, func(t *testing.T) {
			u := newKeyUses(t)
			u.advance(0, c.judge)
			u.advance(1, c.other)
			u.wantWrite(false)
			u.wantWrite(true)
			u.advance(0, c.judge+2)
			u.wantWrite(false)
			u.wantWrite(true)
			u.wantCounts(2, 2)
		})
	}
}

// The judge's log distinguishes uses of a key, even if the ops are on other keyspaces whose logs stand
// still. A second body under the key applies nothing anywhere.
func TestKeyThatAnotherKeyspaceJudges(t *testing.T) {
	t.Parallel()
	u := newKeyUses(t)
	users := u.n.Keyspace(kinds.KeyspaceUsers)
	want := func(duplicate bool, counts int64) {
		t.Helper()
		w := u.write()
		w.Spaces, w.In = []*Keyspace{u.ks, users}, []uint8{1, 1}
		if err := u.n.Write(u.ks, w); err != nil || w.Duplicate != duplicate {
			t.Errorf("duplicate %v, %v; want %v", w.Duplicate, err, duplicate)
		}
		other := u.write()
		if other.ID = dedup.ByKey(u.name, []byte("another body")); !errors.Is(u.n.Write(u.ks, other), errs.ErrConflict) {
			t.Error("another body does not conflict")
		}
		u.wantCounts(0, 0)
		if got := mustGet(t, u.n, users, ReadOptions{}, 0, 1); got[0] != counts || got[len(got)/2] != counts {
			t.Errorf("users count %v, want %d each", got, counts)
		}
	}
	want(false, 1)
	want(true, 1)
	u.advance(0, 1.1)
	want(false, 2)
	want(true, 2)
	u.advance(0, 100)
	want(false, 3)
	want(true, 3)
}
