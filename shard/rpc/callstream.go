package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
)

// StreamHandler answers a call with any number of bytes. It calls send for each piece of at most
// MessageBytesMax, and must not change a sent piece. For ctx, see Handler.
type StreamHandler func(ctx context.Context, request []byte, send func([]byte) error) error

// stream answers a call of a stream method. If the handler fails, stream sends its error after the
// pieces.
func (s *callServer) stream(handle StreamHandler, request []byte, stream grpc.ServerStream) error {
	err := handle(stream.Context(), request, func(piece []byte) error { return stream.SendMsg(&callAnswer{body: piece}) })
	if err == nil {
		return nil
	}
	return stream.SendMsg(&callAnswer{err: err})
}

// HandleStream registers the handler of a stream method. Call it before Serve.
func (c *Calls) HandleStream(method string, h StreamHandler) {
	c.server.streams[callService+method] = h
}

// Stream calls a stream method of another node. The caller must close the returned Stream. Its
// errors are those of Call, but ErrCallLost also stands for a request that gRPC could not send.
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

// Stream is the incoming answer of a stream method. Only one goroutine may use it.
type Stream struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	rest   []byte // unread bytes of the current piece
}

// Next returns the next piece, which the caller owns, and io.EOF after the last.
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

// Read implements io.Reader: it reads the pieces that Next has not returned yet.
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
