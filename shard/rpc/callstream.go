package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
)

// StreamHandler answers a call with bytes of any number, for which send is called a
// piece at a time: of at most MessageBytesMax, and not to be changed any more. ctx is
// a Handler's.
type StreamHandler func(ctx context.Context, request []byte, send func([]byte) error) error

// stream answers a call of a stream method. An error is the last that its caller gets.
func (s *callServer) stream(handle StreamHandler, request []byte, stream grpc.ServerStream) error {
	err := handle(stream.Context(), request, func(piece []byte) error { return stream.SendMsg(&callAnswer{body: piece}) })
	if err == nil {
		return nil
	}
	return stream.SendMsg(&callAnswer{err: err})
}

// HandleStream makes h answer a method. It is to be called before serve.
func (c *Calls) HandleStream(method string, h StreamHandler) {
	c.server.streams[callService+method] = h
}

// Stream has a stream method of another node answer a request. The caller closes what
// it returns. Errors are call's.
func (c *Calls) Stream(ctx context.Context, node, method string, request []byte) (*Stream, error) {
	p, err := c.peer(node)
	if err != nil {
		return nil, err
	}
	if p.doubtful() {
		return nil, fmt.Errorf("%w: node %s does not answer pings", ErrNotSent, node)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{cancel: cancel}
	if s.stream, err = p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, callService+method); err == nil {
		err = s.stream.SendMsg(&callRequest{body: request})
	}
	if err == nil {
		err = s.stream.CloseSend()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %s on node %s: %w", ErrCallLost, method, node, err)
	}
	return s, nil
}

// Stream is the answer of a stream method, as it comes. It is one goroutine's.
type Stream struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	rest   []byte // of the piece that is being read
}

// Next returns the next piece, which is the caller's, and io.EOF behind the last.
func (s *Stream) Next() ([]byte, error) {
	var answer callAnswer
	err := s.stream.RecvMsg(&answer)
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrCallLost, err)
	}
	return answer.body, answer.err
}

// Read is io.Reader's: it reads on from the pieces that next has not returned.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		var err error
		if s.rest, err = s.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *Stream) Close() { s.cancel() }
