package api

import (
	"errors"
	"time"

	"github.com/countd/countd/shard"
)

// arrival is what is known of a request before its body is looked at.
type arrival struct {
	endpoint  *endpoint
	timeout   time.Duration
	bodyBytes int // below 0 for in chunks
	lane      *lane
	weight    int64 // in the lane
}

// admit refuses a request when the node has enough of others. It may have the
// request wait first, for up to half of its timeout.
func (s *Server) admit(in *arrival) error {
	err := s.refusal(in)
	if err == nil {
		return nil
	}
	if wait := s.admission.doorWait(1, min(doorWaitMax, in.timeout/2)); wait > 0 {
		time.Sleep(wait)
		return s.refusal(in)
	}
	return err
}

// refusal returns why a request cannot be let in now, or nil.
func (s *Server) refusal(in *arrival) error {
	if in.endpoint.takes&exempt == 0 && in.bodyBytes > smallBodyBytesMax && !s.bodies.fits(in.bodyBytes) {
		return s.overloads.bodies
	}
	return s.crowded(in)
}

// crowded is refusal for a request whose body has its room.
func (s *Server) crowded(in *arrival) error {
	switch {
	case in.endpoint.takes&exempt != 0:
		return nil
	case s.inFlight.Load() >= int64(s.cfg.InFlightMax):
		return s.overloads.inFlight
	case in.endpoint.takes&takesWrite != 0 && !in.lane.admits(in.weight, in.timeout):
		return s.overloads.wait
	}
	return nil
}

// holdBack has a request wait that a full queue refused when its body was
// decoded already, by what that took. There is an answer by its deadline.
func (s *Server) holdBack(r *request) {
	left := r.timeout - time.Since(r.received)
	if wait := s.admission.doorWait(1+len(r.body)/decodedPerRefusal, min(doorWaitMax, left/2)); wait > 0 {
		time.Sleep(wait)
	}
}

// wasTried reports whether a write took the time that the backend takes, up to
// its deadline. One that found a queue full did not.
func wasTried(err error) bool {
	return err == nil || errors.Is(err, shard.ErrOutcomeUnknown) || errors.Is(err, shard.ErrTooLate)
}
