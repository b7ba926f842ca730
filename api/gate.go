package api

import (
	"errors"
	"time"

	"github.com/countd/countd/shard"
)

// admit refuses a request if the node is too busy. It may delay the request first, for up to
// half of its timeout.
func (s *Server) admit(in *arrival) error {
	err := s.refusal(in)
	if err == nil {
		return nil
	}
	if wait := s.admission.refusalDelay(1, min(refusalDelayMax, in.timeout/2)); wait > 0 {
		time.Sleep(wait)
		return s.refusal(in)
	}
	return err
}

// refusal returns why a request cannot be admitted now, or nil.
func (s *Server) refusal(in *arrival) error {
	if in.endpoint.takes&exempt == 0 && in.bodyBytes > smallBodyBytesMax && !s.bodies.fits(in.bodyBytes) {
		return s.overloads.bodies
	}
	return s.crowded(in)
}

// crowded is refusal for a request whose body is in memory already.
func (s *Server) crowded(in *arrival) error {
	switch {
	case in.endpoint.takes&exempt != 0:
		return nil
	case s.inFlight.Load() >= int64(s.cfg.InFlightMax):
		return s.overloads.inFlight
	case in.endpoint.takes&takesWrite != 0 && !in.class.admits(in.weight, in.timeout):
		return s.overloads.wait
	}
	return nil
}

// holdBack delays the answer to a request that a full queue refused after its body was decoded. It
// waits as long as the decoding took, but not past the deadline.
func (s *Server) holdBack(r *request) {
	left := r.timeout - time.Since(r.received)
	if wait := s.admission.refusalDelay(1+len(r.body)/decodedPerRefusal, min(refusalDelayMax, left/2)); wait > 0 {
		time.Sleep(wait)
	}
}

// wasTried reports whether a write spent time in the backend, up to its deadline. A write that a
// full queue refused did not.
func wasTried(err error) bool {
	return err == nil || errors.Is(err, shard.ErrOutcomeUnknown) || errors.Is(err, shard.ErrTooLate)
}
