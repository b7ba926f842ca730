package replica

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
)

// idleLeader imitates raft's heartbeat goroutine for one follower: it sends a heartbeat 0.1 to 0.2
// s after the last answer. It calls sent with the time at which each heartbeat was due.
func idleLeader(t *testing.T, trans raftTransport, id raft.ServerID, rng *rand.Rand, sent func(time.Time), until time.Time) (returned time.Duration) {
	t.Helper()
	args := testHeartbeat()
	last := time.Now()
	for time.Now().Before(until) {
		time.Sleep(100*time.Millisecond + time.Duration(rng.Int64N(int64(100*time.Millisecond))))
		c := trans.contact(id)
		if !trans.spares(c, args, true) {
			sent(time.Now())
			c.took(time.Now(), args, nil, 0)
		}
		returned = max(returned, time.Since(last))
		last = time.Now()
	}
	return returned
}

// However many groups are idle:
//
//  1. their heartbeats leave together, at few moments;
//  2. no follower waits for a heartbeat for longer than one and a half pauses;
//  3. raft notes a contact often enough for the leader's lease.
func TestHeartbeatsLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const groups = 100
		began := time.Now()
		beats := NewBeats()
		moments := make(chan time.Time, 1<<20)
		ended := make(chan struct{}, groups)
		time.Sleep(123 * time.Millisecond) // so that no group begins at a beat
		for i := range groups {
			go func() {
				defer func() { ended <- struct{}{} }()
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
				trans := raftTransport{pause: TimingDefault.Heartbeat * 2 / 5, beats: beats, closed: newClosedOnce()}
				trans.contacts = &sync.Map{}
				var last time.Time
				returned := idleLeader(t, trans, "n2", rng, func(now time.Time) {
					if !last.IsZero() && now.Sub(last) > TimingDefault.Heartbeat*3/5 {
						t.Errorf("a follower had no heartbeat for %v", now.Sub(last))
					}
					last = now
					moments <- now
				}, began.Add(30*time.Second))
				if spare := TimingDefault.Lease - returned; spare < TimingDefault.Lease/3 {
					t.Errorf("the lease has %v left for a slow answer", spare)
				}
			}()
		}
		for range groups {
			<-ended
		}
		close(moments)
		distinct, all := map[time.Time]int{}, 0
		for m := range moments {
			all++
			if m.Sub(began) > 2*time.Second {
				distinct[m]++
			}
		}
		if beats := int(28 * time.Second / heartbeatEvery); len(distinct) > beats+1 || all < groups*beats*9/10 {
			t.Errorf("%d heartbeats at %d moments in %d beats", all, len(distinct), beats)
		}
	})
}

func TestHeartbeatEndsWithItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trans := raftTransport{pause: time.Hour, beats: NewBeats(), closed: newClosedOnce(), contacts: &sync.Map{}}
		trans.contact("n2").took(time.Now(), testHeartbeat(), nil, 0)
		began := time.Now()
		go func() { time.Sleep(time.Millisecond); trans.closed.close() }()
		trans.spares(trans.contact("n2"), testHeartbeat(), true)
		if time.Since(began) != time.Millisecond {
			t.Errorf("after %v", time.Since(began))
		}
	})
}

// A heartbeat waits only if the follower answered a call of this term a short time ago.
func TestFirstHeartbeatWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trans := raftTransport{pause: 400 * time.Millisecond, beats: NewBeats(), closed: newClosedOnce(), contacts: &sync.Map{}}
		mustGo := func(name string) {
			t.Helper()
			began := time.Now()
			if trans.spares(trans.contact("n2"), testHeartbeat(), true) || time.Since(began) != 0 {
				t.Errorf("%s: not sent, after %v", name, time.Since(began))
			}
		}
		mustGo("the first of all")
		args := testHeartbeat()
		args.Term--
		trans.contact("n2").took(time.Now(), args, nil, 0)
		mustGo("the first of a term")
		trans.contact("n2").took(time.Now(), testHeartbeat(), nil, 0)
		time.Sleep(610 * time.Millisecond)
		mustGo("one that is late")
	})
}

// The leader skips an append without entries only if the follower has learned everything in it
// since the follower's replica was opened.
func TestFollowerKnows(t *testing.T) {
	conn, another := &stream.Conn{}, &stream.Conn{}
	entries := testAppend()
	entries.LeaderCommitIndex = 302
	last := &raft.AppendEntriesRequest{Term: entries.Term, PrevLogEntry: 303, PrevLogTerm: entries.Term, LeaderCommitIndex: 302}
	change := func(f func(*raft.AppendEntriesRequest)) *raft.AppendEntriesRequest {
		args := *last
		f(&args)
		return &args
	}
	heartbeat := testHeartbeat()
	heartbeat.Term = entries.Term
	for name, test := range map[string]struct {
		then func(c *contact)
		args *raft.AppendEntriesRequest
		want bool
	}{
		"the same":                 {nil, last, true},
		"an earlier commit":        {nil, change(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex-- }), true},
		"a later commit":           {nil, change(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex++ }), false},
		"another last entry":       {nil, change(func(a *raft.AppendEntriesRequest) { a.PrevLogEntry-- }), false},
		"a later term":             {nil, change(func(a *raft.AppendEntriesRequest) { a.Term++ }), false},
		"an entry":                 {nil, change(func(a *raft.AppendEntriesRequest) { a.Entries = entries.Entries[:1] }), false},
		"behind a heartbeat":       {func(c *contact) { c.took(time.Now(), heartbeat, conn, 1) }, last, true},
		"it was opened again":      {func(c *contact) { c.took(time.Now(), heartbeat, conn, 2) }, last, false},
		"on another connection":    {func(c *contact) { c.took(time.Now(), heartbeat, another, 1) }, last, false},
		"behind one by itself":     {func(c *contact) { c.took(time.Now(), last, nil, 0) }, last, false},
		"behind one of a new term": {func(c *contact) { c.took(time.Now(), testHeartbeat(), conn, 1) }, last, false},
	} {
		c := &contact{}
		c.took(time.Now(), entries, conn, 1)
		if test.then != nil {
			test.then(c)
		}
		if got := c.knows(test.args); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestReopenedFollowerLearnsTheCommit(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	for n := range uint64(10) {
		r.add(t, n, -1)
	}
	r.mustAgree(t, -1)
	for range 2 {
		follower := (r.leader(t, -1) + 1) % 3
		mustClose(t, r.groups[follower])
		r.open(t, follower)
		r.mustAgree(t, -1)
	}
}
