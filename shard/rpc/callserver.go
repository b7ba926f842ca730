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
	// MessageBytesMax bounds a request and an answer. The largest messages are a page of rows and a
	// write of QueueBytesMax (package propose), with overhead.
	MessageBytesMax = 20 << 20
	// answerBytesMax bounds an answer with its code.
	answerBytesMax = MessageBytesMax + 1
	// handlersMax bounds the calls that a node handles concurrently. Callers send in batches: 4
	// nodes that each send 4 batches at once for each of 64 groups make 1024 calls.
	handlersMax = 1024
	// requestBytesMax bounds the memory of the requests being handled, after they are read.
	requestBytesMax = 256 << 20
	// streamsMax bounds the open calls of one connection. It leaves space for pings beside
	// callsInFlightMax, so that no call waits for another.
	streamsMax = callsInFlightMax + 64
	// CloseGraceMax is how long Close lets handlers finish before it cancels them. Proposed writes
	// take a few disk syncs; other calls need no grace.
	CloseGraceMax = time.Second
	// CallTimeoutMax bounds a call without a deadline. A client's request may take as long.
	CallTimeoutMax = 60 * time.Second

	// A sender may send streamWindowBytes on a stream, and connWindowBytes on a connection, before
	// the receiver reads them. Fixed windows of this size are large enough: 1 MiB in each round
	// trip of 10 ms is 100 MB/s.
	streamWindowBytes = 1 << 20
	connWindowBytes   = 16 << 20

	callService = "/countd.calls/"
	pingMethod  = callService + "ping" // answered at once, even while handlersMax calls are running
)

// Handler answers a call. It owns the request. The transport owns the returned answer: the handler
// must not change it afterwards. ctx ends at the caller's deadline and when the node closes. For a
// gRPC call, ctx also ends when the caller gives up or disconnects. For a call over an append
// stream (Answer) it does not.
type Handler = func(ctx context.Context, request []byte) ([]byte, error)

// callServer answers the calls of other nodes. It does not catch a handler's panic, which ends the
// process. gRPC starts a goroutine for each call, and its Stop waits for all of them.
type callServer struct {
	grpc     *grpc.Server
	handlers map[string]Handler       // by full method; unchanged once Serve runs
	streams  map[string]StreamHandler // by full method; unchanged once Serve runs
	slots    chan struct{}            // a token for each running handler
	held     atomic.Int64             // bytes of the requests being handled
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

// close refuses further calls and waits for every handler. It cancels the handlers that still run
// after CloseGraceMax.
func (s *callServer) close() {
	drained := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(drained) }() // ends once the last handler has ended
	select {
	case <-drained:
	case <-time.After(CloseGraceMax):
		s.grpc.Stop()
		<-drained
	}
}

// receive answers one call. It acquires a slot before it reads the request. A handler's error
// travels inside the answer, so a gRPC error always comes from the transport.
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

// begin acquires a slot for a call; end releases it.
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

// callRequest is a request for the codec.
type callRequest struct {
	body []byte
	// sent is set when gRPC asks for the bytes. Before that, no byte can have left this node.
	sent bool
}

// callAnswer is an answer for the codec. Its bytes are AppendError of err and, if err is nil, the
// body.
type callAnswer struct {
	body    []byte
	err     error
	arrived bool // the whole answer has arrived
}

// ParseAnswer decodes an answer that arrived over another connection. It returns the body, or the
// handler's error as handlerErr. err is set if b is not a valid answer.
func ParseAnswer(b []byte) (body []byte, handlerErr, err error) {
	var a callAnswer
	err = a.parse(b)
	return a.body, a.err, err
}

// callCodec passes bytes through unchanged. It copies only received bytes.
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
