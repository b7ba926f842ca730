package client

import (
	"crypto/rand"
	"time"
)

const (
	// Window is the size of a producer's window: a server refuses a number that is Window or more
	// below the highest. The client may send a number if no open number is Window or more below it.
	Window = 64
	// InFlightMax bounds the requests in flight of one producer.
	InFlightMax = Window
	// sessionAgeMax ends a session long before a shard forgets the producer. A shard forgets a
	// producer after a day, and the day may begin at a different write on each shard.
	sessionAgeMax = time.Hour
)

// NewProducer returns a name that no other process has.
func NewProducer() string { return rand.Text() }

// session numbers the batches of one producer.
//
// Invariant: every open number lies in [lowest, next), and next - lowest is at most Window. A
// number is open if it was sent and may be sent again.
type session struct {
	producer string
	born     time.Time
	next     uint64 // number of the next batch; from 1
	lowest   uint64 // the lowest open number; next if none is open
	open     map[uint64]bool
}

func newSession() *session {
	return &session{producer: NewProducer(), born: time.Now(), next: 1, lowest: 1, open: map[uint64]bool{}}
}

// hasRoom reports whether the window has space for one more number.
func (s *session) hasRoom() bool { return s.next < s.lowest+Window }

// take opens and returns the next number.
func (s *session) take() uint64 {
	seq := s.next
	s.open[seq] = true
	s.next++
	return seq
}

// settle closes a number. The caller never sends it again.
func (s *session) settle(seq uint64) {
	delete(s.open, seq)
	for s.lowest < s.next && !s.open[s.lowest] {
		s.lowest++
	}
}
