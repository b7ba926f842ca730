package api

import (
	"errors"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/shard/errs"
)

// admit refuses a request if the node is too busy. It may delay the request first, for up to
// half of its timeout.
func (s *Server) admit(in *arrival) error {
	err := s.refusal(in)
	if err == nil {
		return nil
	}
	if wait := s.admission.RefusalDelay(1, min(gate.RefusalDelayMax, in.timeout/2)); wait > 0 {
		time.Sleep(wait)
		return s.refusal(in)
	}
	return err
}

// refusal returns why a request cannot be admitted now, or nil.
func (s *Server) refusal(in *arrival) error {
	if in.endpoint.takes&exempt == 0 && in.bodyBytes > gate.SmallBodyBytesMax && !s.bodies.Fits(in.bodyBytes) {
		return s.overloads.bodies
	}
	return s.crowded(in)
}

// crowded does the same checks as refusal, except for the body's memory.
func (s *Server) crowded(in *arrival) error {
	switch {
	case in.endpoint.takes&exempt != 0:
		return nil
	case s.inFlight.Load() >= int64(s.cfg.InFlightMax):
		return s.overloads.inFlight
	case in.endpoint.takes&takesWrite != 0 && !in.write.Admits(in.timeout):
		return s.overloads.wait
	}
	return nil
}

// holdBack delays the answer to a request if a full queue refused the request after its body was
// decoded. The delay depends on the length of the body. It never delays beyond the deadline.
func (s *Server) holdBack(r *request) {
	left := r.timeout - time.Since(r.received)
	if wait := s.admission.RefusalDelay(1+len(r.body)/gate.DecodedPerRefusal, min(gate.RefusalDelayMax, left/2)); wait > 0 {
		time.Sleep(wait)
	}
}

// wasTried reports whether the duration of a write shows the backend's speed. The duration of a
// refused write does not.
func wasTried(err error) bool {
	return err == nil || errors.Is(err, errs.ErrOutcomeUnknown) || errors.Is(err, errs.ErrTooLate)
}

// arrival describes a request whose body is not read yet.
type arrival struct {
	endpoint  *endpoint
	timeout   time.Duration
	bodyBytes int // below 0 for a body in chunks
	write     gate.Write
}

// errHost refuses a request whose Host is not a name of this node.
var errHost = &fault{
	status:  fasthttp.StatusForbidden,
	code:    codePermissionDenied,
	message: "Host: it is not an address or name of this node; --allowed-hosts allows others",
	field:   "Host",
}
