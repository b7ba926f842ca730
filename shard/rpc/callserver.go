package rpc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/countd/countd/shard/errs"
)

const (
	// MessageBytesMax bounds a request and an answer: the largest write that a
	// proposer takes (QueueBytesMax), or a page of rows, and what goes with it.
	MessageBytesMax = 20 << 20
	// answerBytesMax is a message with the code before it.
	answerBytesMax = MessageBytesMax + 1
	// handlersMax bounds the calls that a node answers at once. Callers batch:
	// 64 groups with 4 sends in flight from each of 4 nodes are as many.
	handlersMax = 1024
	// requestBytesMax bounds the memory of the requests that are being answered,
	// once each has been read.
	requestBytesMax = 256 << 20
	// streamsMax bounds the calls that one connection may have open. It leaves
	// room for pings beside callsInFlightMax, so that no call waits for another.
	streamsMax = callsInFlightMax + 64
	// CloseGraceMax is how long close lets calls be answered before it cancels
	// them: proposed writes take a few syncs, others need not be waited for.
	CloseGraceMax = time.Second
	// CallTimeoutMax bounds a call whose caller has no deadline: as long as a
	// request of a client may take.
	CallTimeoutMax = 60 * time.Second

	// A stream may send so much before its receiver reads it, a connection so
	// much in all. Fixed, they need no measuring of the line: 1 MiB in a round
	// trip of 10 ms is 100 MB/s.
	streamWindowBytes = 1 << 20
	connWindowBytes   = 16 << 20

	callService = "/countd.calls/"
	pingMethod  = callService + "ping" // answered at once, whatever else is going on
)

// Handler answers a call. The request is its own. What it returns is the
// transport's and is not to be changed any more. ctx ends with the caller's
// deadline and when the node closes. For a call of gRPC it also ends when the caller gives
// up or is gone; a stream carries small calls, and tells nothing of that.
type Handler = func(ctx context.Context, request []byte) ([]byte, error)

// callServer answers the calls of other nodes. A panic of a handler is left
// alone and ends the process. gRPC starts a goroutine for each call and waits
// for all of them in Stop.
type callServer struct {
	grpc     *grpc.Server
	handlers map[string]Handler       // by full method; not changed once serve runs
	streams  map[string]StreamHandler // likewise
	slots    chan struct{}            // a token for each handler that runs
	held     atomic.Int64             // bytes of their requests
}

func newCallServer() *callServer {
	s := &callServer{handlers: make(map[string]Handler), streams: make(map[string]StreamHandler), slots: make(chan struct{}, handlersMax)}
	s.grpc = grpc.NewServer(
		grpc.UnknownServiceHandler(s.receive),
		grpc.ForceServerCodecV2(callCodec{}),
		grpc.MaxRecvMsgSize(MessageBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.InitialWindowSize(streamWindowBytes),
		grpc.InitialConnWindowSize(connWindowBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPingAfter, Timeout: serverPingTimeout}),
		grpc.WaitForHandlers(true),
	)
	return s
}

// close refuses further calls, lets those that run end, cancels them after
// CloseGraceMax, and waits for every handler.
func (s *callServer) close() {
	drained := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(drained) }() // ends with the last handler
	select {
	case <-drained:
	case <-time.After(CloseGraceMax):
		s.grpc.Stop()
		<-drained
	}
}

// receive answers one call. It reads the request only once there is a slot to
// work on it. Handlers' errors travel inside the answer, so that an error of
// gRPC itself is always one of the way.
func (s *callServer) receive(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if method == pingMethod {
		return stream.SendMsg(&callAnswer{})
	}
	if err := s.begin(); err != nil {
		return stream.SendMsg(&callAnswer{err: err})
	}
	defer s.end()
	var request callRequest
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if handle := s.streams[method]; handle != nil {
		return s.stream(handle, request.body, stream)
	}
	body, err := s.answer(stream.Context(), method, request.body)
	return stream.SendMsg(&callAnswer{body: body, err: err})
}

// begin takes the slot of a call, which end gives back.
func (s *callServer) begin() error {
	select {
	case s.slots <- struct{}{}:
		return nil
	default:
		return fmt.Errorf("%w: %d calls are being answered", errs.ErrOverloaded, handlersMax)
	}
}

func (s *callServer) end() { <-s.slots }

func (s *callServer) answer(ctx context.Context, method string, request []byte) ([]byte, error) {
	handler := s.handlers[method]
	if handler == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoMethod, method)
	}
	size := int64(len(request))
	defer s.held.Add(-size)
	if s.held.Add(size) > requestBytesMax {
		return nil, fmt.Errorf("%w: %d bytes of calls are being answered", errs.ErrOverloaded, requestBytesMax)
	}
	answer, err := handler(ctx, request)
	if err == nil && len(answer) > MessageBytesMax {
		return nil, fmt.Errorf("%w: an answer of %d bytes", ErrTooLarge, len(answer))
	}
	return answer, err
}

// callRequest is a request as the codec takes and gives it.
type callRequest struct {
	body []byte
	// sent is set when gRPC asks for the bytes: from then on they may have left
	// this node, before that they cannot.
	sent bool
}

// callAnswer is an answer likewise: an error as AppendError writes it, and
// behind a code of 0 the body.
type callAnswer struct {
	body    []byte
	err     error
	arrived bool // in whole
}

// ParseAnswer reads an answer that came over another connection: the body, or the error
// that the handler returned. Its own error is of an answer that no node makes.
func ParseAnswer(b []byte) (body []byte, told, err error) {
	var a callAnswer
	err = a.parse(b)
	return a.body, a.err, err
}

// callCodec hands bytes through, without a copy when sending and with one when
// receiving.
type callCodec struct{}

var _ encoding.CodecV2 = callCodec{}

func (callCodec) Name() string { return "countd" }

func (callCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *callRequest:
		m.sent = true
		return mem.BufferSlice{mem.SliceBuffer(m.body)}, nil
	case *callAnswer:
		head := mem.SliceBuffer(AppendError(nil, m.err))
		if m.err != nil {
			return mem.BufferSlice{head}, nil
		}
		return mem.BufferSlice{head, mem.SliceBuffer(m.body)}, nil
	}
	return nil, fmt.Errorf("cannot send a %T", v)
}

func (callCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *callRequest:
		m.body = data.Materialize()
		return nil
	case *callAnswer:
		return m.parse(data.Materialize())
	}
	return fmt.Errorf("cannot receive a %T", v)
}

func (m *callAnswer) parse(b []byte) error {
	told, rest, err := ParseError(b)
	switch {
	case err != nil:
		return err
	case told != nil && len(rest) > 0:
		return fmt.Errorf("%w: %d bytes behind an error", ErrBadAnswer, len(rest))
	case told != nil:
		m.err = told
	default:
		m.body = rest
	}
	m.arrived = true
	return nil
}
