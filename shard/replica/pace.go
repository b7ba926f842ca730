package replica

import (
	"time"

	"github.com/hashicorp/raft"
)

const (
	// snapshotTurn is the time after which the computing of a snapshot pauses for as long.
	snapshotTurn = time.Millisecond
	// snapshotPauseMax bounds a pause, because a longer turn has waited for something.
	snapshotPauseMax = 10 * time.Millisecond
	// snapshotTurnWaitMax bounds the wait for a turn, because whoever has the turn may wait for the disk.
	snapshotTurnWaitMax = 100 * time.Millisecond
	snapshotQueueMax    = time.Minute
)

// SnapshotTurns lets the snapshots of a node's replicas compute in turn.
type SnapshotTurns struct {
	taken chan struct{} // capacity 1; the computing of a snapshot
	due   chan struct{} // capacity 1; a snapshot that is due
	first chan struct{} // capacity 1; the first of those who wait for due
	hurry func() bool
}

// NewSnapshotTurns returns turns without pauses once hurry returns true.
func NewSnapshotTurns(hurry func() bool) *SnapshotTurns {
	return &SnapshotTurns{taken: make(chan struct{}, 1), due: make(chan struct{}, 1), first: make(chan struct{}, 1), hurry: hurry}
}

// wait waits until no other replica takes a snapshot because it is due: while a snapshot is taken, each segment that is written
// to is in memory twice. The first in the queue waits for snapshotQueueMax at most. wait returns false if ended is closed
// first. Otherwise the caller must call leave after its snapshot.
func (s *SnapshotTurns) wait(ended <-chan struct{}) (leave func(), ok bool) {
	if s == nil {
		return func() {}, true
	}
	select {
	case s.first <- struct{}{}:
		defer func() { <-s.first }()
	case <-ended:
		return nil, false
	}
	select {
	case s.due <- struct{}{}:
		return func() { <-s.due }, true
	case <-time.After(snapshotQueueMax):
		return func() {}, true
	case <-ended:
		return nil, false
	}
}

// pacedSink is a SnapshotSink for the snapshots of a node. Computing them takes about half a core, however many they are: a
// goroutine that computes holds a core for up to 10 ms, and a request needs a core several times. A snapshot is computed
// between the calls of Write. It has a turn then, unless it would wait long for one, or the replica or the node closes.
// Nothing else waits for a turn.
type pacedSink struct {
	raft.SnapshotSink
	turns   *SnapshotTurns
	closing func() bool
	has     bool          // a turn
	began   time.Time     // when this call of the state machine began
	spent   time.Duration // since the last pause
}

func (p *pacedSink) hurries() bool { return p.turns == nil || p.closing() || p.turns.hurry() }

func (p *pacedSink) begin() {
	if !p.hurries() {
		select {
		case p.turns.taken <- struct{}{}:
			p.has = true
		case <-time.After(snapshotTurnWaitMax):
		}
	}
	p.began = time.Now()
}

func (p *pacedSink) end() {
	if p.has {
		<-p.turns.taken
		p.has = false
	}
}

func (p *pacedSink) Write(piece []byte) (int, error) {
	if p.spent += time.Since(p.began); p.spent >= snapshotTurn {
		if !p.hurries() {
			time.Sleep(min(p.spent, snapshotPauseMax))
		}
		p.spent = 0
	}
	p.end()
	defer p.begin()
	return p.SnapshotSink.Write(piece)
}

// Close ends the turn, because it waits for the disk.
func (p *pacedSink) Close() error {
	p.end()
	return p.SnapshotSink.Close()
}
