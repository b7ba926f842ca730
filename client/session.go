package client

import (
	"crypto/rand"
	"time"
)

const (
	// Window is how many numbers below a producer's highest a server can tell
	// apart: a number may be sent as long as none that is open, or may be sent
	// again, is Window or more below it.
	Window = 64
	// InFlightMax bounds the requests of one producer.
	InFlightMax = Window
	// sessionAgeMax ends a session long before a server forgets a name, which
	// takes a day, and its shards may count that day from different writes.
	sessionAgeMax = time.Hour
)

// NewProducer makes a name that no other process has.
func NewProducer() string { return rand.Text() }

// session numbers the batches of one producer.
//
// Invariant: every number that is open, sent and perhaps to be sent again, lies
// in [lowest, next), and next - lowest is at most Window.
type session struct {
	producer string
	born     time.Time
	next     uint64 // what the next batch gets; from 1
	lowest   uint64 // the lowest that is open; next when none is
	open     map[uint64]bool
}

func newSession() *session {
	return &session{producer: NewProducer(), born: time.Now(), next: 1, lowest: 1, open: map[uint64]bool{}}
}

// hasRoom tells whether one more number fits the window.
func (s *session) hasRoom() bool { return s.next < s.lowest+Window }

// take opens the next number.
func (s *session) take() uint64 {
	seq := s.next
	s.open[seq] = true
	s.next++
	return seq
}

// settle closes a number, which will not be sent again.
func (s *session) settle(seq uint64) {
	delete(s.open, seq)
	for s.lowest < s.next && !s.open[s.lowest] {
		s.lowest++
	}
}
