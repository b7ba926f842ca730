package replica

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/stream"
)

// heartbeatEvery is the time between two beats of a node. For about the same time after a
// successful call, a leader answers raft's heartbeats without a call (see contact).
const heartbeatEvery = 400 * time.Millisecond

// Beats sends the heartbeats of all groups of a node together, at moments called beats, which are
// heartbeatEvery apart. So the heartbeats to another node share one write, one wake-up of that
// node, and one write of the answers.
//
// Beats has no goroutine, and its timer runs only while a heartbeat waits.
type Beats struct {
	began time.Time // time of the first beat

	mu struct {
		sync.Mutex
		next chan struct{} // closed at the next beat; nil while no heartbeat waits
	}
}

func NewBeats() *Beats { return &Beats{began: time.Now()} }

// next returns the time until the next beat.
func (h *Beats) next(now time.Time) time.Duration {
	return heartbeatEvery - now.Sub(h.began)%heartbeatEvery
}

// wait blocks until the next beat after now, or until stop closes.
func (h *Beats) wait(now time.Time, stop <-chan struct{}) {
	h.mu.Lock()
	beat := h.mu.next
	if beat == nil {
		beat = make(chan struct{})
		h.mu.next = beat
		time.AfterFunc(h.next(now), h.beat)
	}
	h.mu.Unlock()
	select {
	case <-beat:
	case <-stop:
	}
}

func (h *Beats) beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.mu.next)
	h.mu.next = nil
}

// contact records what a leader learned about one follower from successful calls. raft sends ten
// heartbeats in each heartbeat timeout, even in an idle group. With a contact, a leader answers
// most of them itself, without a call.
//
// A pause (see raftTransport) is the time after a successful call during which raft needs no
// further answer from the follower.
type contact struct {
	to uint64 // rpc.Addressee of the follower's Raft id

	mu struct {
		sync.Mutex
		began time.Time // when the last successful call began
		term  uint64    // term of that call
		told  knownTo   // what the follower knows; zero for nothing
	}
}

// knownTo describes how much of the log a follower has, and which commit index it knows. It is
// valid until the follower's replica is opened again, because a reopened replica knows no commit
// index.
type knownTo struct {
	conn      *stream.Conn
	opening   uint64
	term      uint64
	last      uint64
	committed uint64
}

func (c *contact) took(began time.Time, args *raft.AppendEntriesRequest, conn *stream.Conn, opening uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began.After(c.mu.began) || c.mu.term != args.Term {
		c.mu.began, c.mu.term = began, args.Term
	}
	if told := &c.mu.told; told.conn != conn || told.opening != opening || told.term != args.Term {
		*told = knownTo{}
	}
	if !isHeartbeat(args) && conn != nil {
		c.mu.told = knownTo{conn: conn, opening: opening, term: args.Term, last: args.PrevLogEntry + uint64(len(args.Entries)), committed: args.LeaderCommitIndex}
	}
}

// since returns how long ago the last successful call of the term began.
func (c *contact) since(now time.Time, term uint64) (ago time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.mu.began), c.mu.term == term && !c.mu.began.IsZero()
}

// recent reports whether a successful call of the term began less than pause ago.
func (c *contact) recent(now time.Time, term uint64, pause time.Duration) bool {
	ago, ok := c.since(now, term)
	return ok && ago < pause
}

// waits reports whether a heartbeat may wait for the next beat: the follower must get it at most
// one and a half pauses after the last call.
func (c *contact) waits(now time.Time, term uint64, pause, untilBeat time.Duration) bool {
	ago, ok := c.since(now, term)
	return ok && ago+untilBeat <= pause*3/2
}

// last returns the index of the last entry that the follower is known to have, or 0.
func (c *contact) last() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.told.last
}

// knows reports whether an append contains nothing new for the follower: it has no entries, and the
// follower already has its previous entry and knows its commit index.
func (c *contact) knows(args *raft.AppendEntriesRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := &c.mu.told
	return told.conn != nil && len(args.Entries) == 0 && args.Term == told.term &&
		args.PrevLogEntry == told.last && args.LeaderCommitIndex <= told.committed
}

// isHeartbeat reports whether an append is only a sign of life of the leader.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && args.LeaderCommitIndex == 0
}
