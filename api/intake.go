package api

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
)

const (
	// discardBytesMax is the number of bytes of a refused body that the server reads and drops, so
	// that it can reuse the connection. A batch of 10,000 ops is about as long. For a longer body,
	// the server closes the connection.
	discardBytesMax = 512 << 10
	// lengthOfNone is fasthttp's ContentLength of a request without a body.
	lengthOfNone = -2
)

// receive reads the body into r's memory, and sets r.held to the reserved bytes. ctx.Request.Body
// returns the body until r is released.
func (s *Server) receive(ctx *fasthttp.RequestCtx, r *request, e *endpoint) error {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil
	}
	if e.takes&takesAnything != 0 {
		s.discard(ctx)
		return nil
	}
	if e.takes&takesStream != 0 {
		return nil // the handler reads the body itself
	}
	n := ctx.Request.Header.ContentLength()
	var err error
	switch {
	case n < 0:
		err = s.receiveChunks(stream, r)
	case n > gate.SmallBodyBytesMax && !s.hold(r, n):
		err = s.overloads.bodies
	default:
		r.body = slices.Grow(r.body[:0], n)[:n]
		_, err = io.ReadFull(stream, r.body)
	}
	if _, told := errors.AsType[*fault](err); told {
		return err
	}
	if err != nil {
		return unreadable(err)
	}
	if !gate.IsSmall(n) {
		r.received = time.Now()
	}
	ctx.Request.SetBodyRaw(r.body)
	return nil
}

// receiveChunks reads a body of unknown length.
func (s *Server) receiveChunks(stream io.Reader, r *request) error {
	r.body = r.body[:0]
	if !s.hold(r, cap(r.body)) { // r.body is the buffer of an earlier request
		return s.overloads.bodies
	}
	for {
		if len(r.body) == cap(r.body) {
			grown := max(2*cap(r.body), gate.SmallBodyBytesMax)
			if !s.hold(r, grown) {
				return s.overloads.bodies
			}
			r.body = slices.Grow(r.body, grown-len(r.body))
		}
		n, err := stream.Read(r.body[len(r.body):cap(r.body)])
		r.body = r.body[:len(r.body)+n]
		switch {
		case len(r.body) > s.cfg.BodyBytesMax:
			return s.bodyTooLarge()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// hold raises r.held, the memory that is reserved for the body, to n bytes. It reports whether
// there was enough memory.
func (s *Server) hold(r *request, n int) bool {
	if n <= r.held {
		return true
	}
	if !s.bodies.Acquire(n - r.held) {
		return false
	}
	r.held = n
	return true
}

// discard reads the rest of a body, so that the connection can serve the next request. If the rest
// is too long, it makes the connection close.
func (s *Server) discard(ctx *fasthttp.RequestCtx) {
	stream := ctx.RequestBodyStream()
	if stream == nil || ctx.Response.ConnectionClose() {
		return
	}
	n := ctx.Request.Header.ContentLength()
	if gate.IsSmall(n) {
		return
	}
	if n <= discardBytesMax {
		if _, err := io.CopyN(io.Discard, stream, discardBytesMax+1); errors.Is(err, io.EOF) {
			return
		}
	}
	closeAfterAnswer(ctx)
}

// awaitBody returns the limits for reading the body of a request whose headers have arrived. The
// body must arrive within the request's timeout or the read timeout, whichever is shorter. If the
// body is too large, awaitBody sets Expect, so that fasthttp calls expect, which refuses it.
// fasthttp would otherwise first wait for bytes of the body.
func (s *Server) awaitBody(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	n := h.ContentLength()
	if n == 0 || n == lengthOfNone {
		return fasthttp.RequestConfig{}
	}
	if n > s.cfg.BodyBytesMax {
		var uri fasthttp.URI
		if err := uri.Parse(nil, h.RequestURI()); err != nil {
			return fasthttp.RequestConfig{} // serve reports the fault
		}
		e, _, err := s.routes.find(h.Method(), uri.PathOriginal())
		if err == nil && s.tooLarge(e, n) {
			h.Set(fasthttp.HeaderExpect, "100-continue")
		}
	}
	timeout, _ := gate.TimeoutOf(h) // serve reports the fault
	return fasthttp.RequestConfig{ReadTimeout: min(timeout, s.cfg.ReadTimeout)}
}

// expect answers a client that sends Expect: 100-continue. It refuses a body that is too large
// immediately, because fasthttp would request the body before it calls serve. After a refusal,
// fasthttp sets the returned status, keeps the rest of the answer, and closes the connection.
func (s *Server) expect(ctx *fasthttp.RequestCtx) int {
	e, _, err := s.routes.find(ctx.Method(), ctx.URI().PathOriginal())
	if err != nil || !s.tooLarge(e, ctx.Request.Header.ContentLength()) {
		return fasthttp.StatusContinue // serve reports the fault
	}
	f := s.bodyTooLarge()
	answerFault(ctx, f)
	closeAfterAnswer(ctx)
	e.observers.Observe(f.status, 0, 0, len(ctx.Response.Body()))
	return f.status
}

// tooLarge reports whether a body of n bytes is too large for an endpoint. n is below 0 for a body
// in chunks.
func (s *Server) tooLarge(e *endpoint, n int) bool {
	return n > s.cfg.BodyBytesMax && e.takes&(takesAnything|takesStream) == 0
}

// bodyTooLarge returns the fault for a body above Config.BodyBytesMax.
func (s *Server) bodyTooLarge() *fault {
	return &fault{
		status: fasthttp.StatusRequestEntityTooLarge, code: codeTooLarge,
		message: fmt.Sprintf("the body is too large: at most %d bytes; split the request", s.cfg.BodyBytesMax),
	}
}

// unreadable returns the fault for a request that could not be read. The connection must close,
// because the beginning of the next request is unknown.
func unreadable(err error) *fault {
	var headers *fasthttp.ErrSmallBuffer
	var network net.Error
	switch {
	case errors.Is(err, gate.ErrTLS):
		f := invalid("request", gate.ErrTLS.Error())
		f.closes = true
		return f
	case errors.As(err, &headers):
		return &fault{status: fasthttp.StatusRequestHeaderFieldsTooLarge, code: codeTooLarge, message: "the headers are too large", closes: true}
	case errors.As(err, &network) && network.Timeout():
		return &fault{status: fasthttp.StatusRequestTimeout, code: codeRequestTimeout, message: "the request did not arrive in time", closes: true}
	}
	f := invalid("request", "not a valid HTTP request")
	f.closes = true
	return f
}
