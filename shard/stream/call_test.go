package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// streamNode is a node of callNodes that also answers calls on streams, and makes calls on them.
type streamNode struct {
	*rpc.Calls
	streams  *Streams
	mux      *rpc.Mux
	onStream atomic.Int64 // calls that arrived on a stream
}

func newStreamNode(t *testing.T, nodes *callNodes, name string, handlers map[string]rpc.Handler) *streamNode {
	t.Helper()
	n := &streamNode{}
	n.Calls, n.mux = nodes.Node(t, name, handlers, func(node string) { n.streams.Cut(node) })
	n.streams = New(Config{
		Mux: n.mux, Lookup: nodes.Lookup, Calls: n,
	})
	t.Cleanup(n.streams.Close)
	return n
}

// Answer counts the call and answers it as Calls does.
func (n *streamNode) Answer(ctx context.Context, method string, request []byte) ([]byte, error) {
	n.onStream.Add(1)
	return n.Calls.Answer(ctx, method, request)
}

// onStreamOnly does the same as Streams.Call, but never falls back to gRPC. It returns ErrNotSent
// if the stream does not accept a call, or if the other node refuses the call because it is
// closing.
func (n *streamNode) onStreamOnly(ctx context.Context, node, method string, request []byte) ([]byte, error) {
	if err := n.Reachable(node); err != nil {
		return nil, err
	}
	answer, err := n.streams.ask(ctx, node, method, request)
	if errors.Is(err, ErrNoStream) || errors.Is(err, errs.ErrDraining) {
		err = rpc.ErrNotSent
	}
	return answer, err
}

// leaveAndClose closes the streams as a closing node does.
func (n *streamNode) leaveAndClose() {
	n.streams.Leave()
	n.Calls.Close()
	n.streams.Close()
}

func TestStreamCallsTellTheirFate(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := newStreamNode(t, &nodes, "a", nil)
	f := must.NewFates(rpc.ErrNotSent, rpc.ErrCallLost)
	b := newStreamNode(t, &nodes, "b", f.Handlers())
	proxy := must.NewCable(t, b.mux.Addr().String())
	nodes.Put("b", proxy.Addr())
	f.OutliveCuts(t, a.onStreamOnly, proxy, b.leaveAndClose)
}

// Before a node closes, it answers the calls that it has received.
func TestStreamCallsOfANodeThatRestarts(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := newStreamNode(t, &nodes, "a", nil)
	f := must.NewFates(rpc.ErrNotSent, rpc.ErrCallLost)
	b := newStreamNode(t, &nodes, "b", f.Handlers())
	f.OutliveRestarts(t, a.onStreamOnly, func() {
		b.leaveAndClose()
		mustDo(t, b.mux.Close())
		b = newStreamNode(t, &nodes, "b", f.Handlers())
	}, func() { b.leaveAndClose() })
}

// A small call uses the stream once the nodes have one. A call with a large request or a large
// answer uses gRPC.
func TestSmallCallsTravelOnStreams(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a, b := newStreamNode(t, &nodes, "a", nil), newStreamNode(t, &nodes, "b", nil)
	echoed := func(bytesOf, answerBytes int) (streamed bool) {
		t.Helper()
		before := b.onStream.Load()
		request := bytes.Repeat([]byte("x"), bytesOf)
		got, err := a.streams.Call(testContext(t), "b", "echo", request, answerBytes)
		if err != nil || !bytes.Equal(got, request) {
			t.Fatalf("%d bytes back, %v", len(got), err)
		}
		return b.onStream.Load() > before
	}
	eventually(t, "a call travels on the stream", func() bool { return echoed(0, 0) })
	if !echoed(streamRequestMax, streamAnswerMax) {
		t.Error("the largest does not")
	}
	if echoed(streamRequestMax+1, 0) || echoed(1, streamAnswerMax+1) {
		t.Error("a larger one does")
	}
	if _, err := a.onStreamOnly(testContext(t), "b", "nothing", nil); !errors.Is(err, rpc.ErrNoMethod) {
		t.Errorf("of a method that there is not: %v", err)
	}
}

// The stream to a node that hangs and answers no pings is closed. Calls to that node fail, like
// gRPC calls, and do not wait for their deadline.
func TestStreamToANodeThatStandsStill(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a, b := newStreamNode(t, &nodes, "a", nil), newStreamNode(t, &nodes, "b", nil)
	proxy := must.NewCable(t, b.mux.Addr().String())
	nodes.Put("b", proxy.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	eventually(t, "the stream is there", func() bool { _, err := a.onStreamOnly(ctx, "b", "echo", nil); return err == nil })
	release := proxy.Hold()
	_, err := a.onStreamOnly(ctx, "b", "echo", nil)
	release()
	if !errors.Is(err, rpc.ErrCallLost) || !errors.Is(err, errPingsMissed) {
		t.Errorf("told %v", err)
	}
	eventually(t, "the node is called again", func() bool { _, err := a.onStreamOnly(ctx, "b", "echo", nil); return err == nil })
}

// Calls on a connection end at their deadlines. If no answer arrived for silenceMax, the connection
// is closed; otherwise it stays open.
func TestSilentStreamIsClosed(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := newConn(&peer{streams: &Streams{}}, here)
	ended := func() bool {
		select {
		case <-c.ended:
			return true
		default:
			return false
		}
	}
	ask := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.ask(ctx, "echo", nil); !errors.Is(err, rpc.ErrCallLost) {
			t.Fatalf("told %v", err)
		}
	}
	ask()
	if ended() {
		t.Fatal("closed at once")
	}
	c.mu.silentSince = c.mu.silentSince.Add(-silenceMax)
	c.heard.Add(1)
	ask()
	if ended() {
		t.Fatal("closed although something was heard")
	}
	c.mu.silentSince = c.mu.silentSince.Add(-silenceMax)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = c.ask(cancelled, "echo", nil)
	if ended() {
		t.Fatal("closed by a caller that gave up")
	}
	ask()
	if !ended() || !errors.Is(c.mu.err, errSilent) {
		t.Errorf("it ended: %v, %v", ended(), c.mu.err)
	}
}

// only returns the single stream that the server serves.
func (s *server) only(t *testing.T) *servedStream {
	t.Helper()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for one := range s.mu.streams {
		return one
	}
	t.Fatal("no stream is served")
	return nil
}

// A node may read the answers to its calls late. It then receives all of them on the same stream,
// however large they are together.
func TestLargeAnswersWaitForTheirTurn(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := newStreamNode(t, &nodes, "a", nil)
	body := make([]byte, streamAnswerMax)
	const calls = 100
	var entered sync.WaitGroup
	entered.Add(calls)
	answer := make(chan struct{})
	b := newStreamNode(t, &nodes, "b", map[string]rpc.Handler{"large": func(context.Context, []byte) ([]byte, error) {
		entered.Done()
		<-answer
		return body, nil
	}})
	proxy := must.NewCable(t, b.mux.Addr().String())
	nodes.Put("b", proxy.Addr())
	ctx := testContext(t)
	eventually(t, "the stream is there", func() bool { _, err := a.onStreamOnly(ctx, "b", "echo", nil); return err == nil })
	c := a.streams.peer("b").now()
	errs := make(chan error, calls)
	for range calls {
		go func() {
			got, err := c.ask(ctx, "large", nil)
			if err == nil && len(got) != len(body) {
				err = fmt.Errorf("%d bytes", len(got))
			}
			errs <- err
		}()
	}
	entered.Wait()
	release := proxy.Hold()
	close(answer)
	served := b.streams.served.only(t)
	eventually(t, "answers wait to be written", func() bool {
		served.mu.Lock()
		defer served.mu.Unlock()
		return served.mu.ended || len(served.mu.out) >= callAnswersBytesMax
	})
	release()
	for range calls {
		mustDo(t, <-errs)
	}
}

// The answer to a call that was given up is dropped: a later call on the same stream gets its own
// answer. Otherwise the answer to an earlier request could confirm a later read.
func TestLateStreamAnswerIsNobodys(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := newStreamNode(t, &nodes, "a", nil)
	release := make(chan struct{})
	newStreamNode(t, &nodes, "b", map[string]rpc.Handler{"late": func(_ context.Context, request []byte) ([]byte, error) {
		<-release
		return request, nil
	}})
	eventually(t, "the stream is there", func() bool { _, err := a.onStreamOnly(testContext(t), "b", "echo", nil); return err == nil })
	c := a.streams.peer("b").now()
	soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.ask(soon, "late", []byte("first")); !errors.Is(err, rpc.ErrCallLost) {
		t.Fatalf("told %v", err)
	}
	second := make(chan string)
	go func() {
		got, err := c.ask(testContext(t), "late", []byte("second"))
		second <- fmt.Sprint(string(got), err)
	}()
	heard := c.heard.Load()
	close(release)
	if got := <-second; got != "second<nil>" {
		t.Errorf("the second call was told %s", got)
	}
	eventually(t, "both answers have come", func() bool { return c.heard.Load() >= heard+2 })
}

// A connection shows only that something accepts connections. No call is sent on it before the
// node's serve message has arrived. Otherwise the outcome of a call would be unknown in cases in
// which gRPC knows it.
func TestStreamCallsWaitForTheOtherNode(t *testing.T) {
	mustLeaveNothing(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts, as on a node that hangs
	mustDo(t, err)
	defer listener.Close()
	var nodes callNodes
	a := newStreamNode(t, &nodes, "a", nil)
	nodes.Put("b", listener.Addr().String())
	eventually(t, "the stream is dialled", func() bool {
		p := a.streams.peer("b")
		p.now()
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.mu.conn != nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.streams.Call(ctx, "b", "echo", nil, 0); !errors.Is(err, rpc.ErrNotSent) {
		t.Errorf("told %v", err)
	}
}

// A stream that has ended delivers nothing any more. Otherwise data that the operating system had
// not sent yet would arrive once the network works again, minutes after the calls were given up.
func TestEndedStreamDeliversNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	mustDo(t, err)
	there, err := listener.Accept()
	mustDo(t, err)
	defer there.Close()
	c := newConn(&peer{streams: &Streams{}}, conn)
	var writing sync.WaitGroup
	writing.Go(c.writeCalls)
	_, _, err = c.put(func(dst []byte, id uint64) []byte { return appendStreamCall(dst, id, "echo", time.Second, nil) })
	mustDo(t, err)
	_, err = io.ReadFull(there, make([]byte, messageHeadBytes))
	mustDo(t, err)
	c.fail(errPingsMissed)
	writing.Wait()
	if _, err := io.ReadAll(there); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the other side reads %v, and what waited before that", err)
	}
}

// The handler's context of a call on a stream ends at the caller's deadline.
func TestStreamCallCarriesItsTime(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := newStreamNode(t, &nodes, "a", nil)
	ended := make(chan error, 1)
	newStreamNode(t, &nodes, "b", map[string]rpc.Handler{"wait": func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	eventually(t, "the stream is there", func() bool { _, err := a.onStreamOnly(testContext(t), "b", "echo", nil); return err == nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.onStreamOnly(ctx, "b", "wait", nil); err == nil {
		t.Error("it was answered")
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the handler ended with %v", err)
	}
}

func TestStreamCallArrivesAsItWasSent(t *testing.T) {
	b := appendStreamCall(nil, 7, "propose", 3*time.Second+time.Nanosecond, []byte("request"))
	id, method, has, request, err := parseStreamCall(b)
	if err != nil || id != 7 || method != "propose" || has != 3*time.Second || string(request) != "request" {
		t.Errorf("%d, %q, %v, %q, %v", id, method, has, request, err)
	}
	if _, _, has, _, err := parseStreamCall(appendStreamCall(nil, 1, "m", -time.Second, nil)); err != nil || has != 0 {
		t.Errorf("without time: %v, %v", has, err)
	}
	for _, bad := range [][]byte{nil, {1}, {0, 1, 0, 0}, {2, 1, 0, 0}, {1, 1, 9, 0}, {1, 1, 0}} {
		if _, _, _, _, err := parseStreamCall(bad); !errors.Is(err, wire.ErrBadMessage) {
			t.Errorf("%v was taken: %v", bad, err)
		}
	}
	if _, _, _, _, err := parseAppend(b); !errors.Is(err, wire.ErrBadMessage) {
		t.Errorf("as an append: %v", err)
	}
	answer, err := parseAppendAnswer(appendCallAnswer(nil, 7, []byte("body"), nil))
	if err != nil || answer.id != 7 || string(answer.body) != "\x00body" {
		t.Errorf("%+v, %v", answer, err)
	}
	if leave, err := parseAppendAnswer(appendAnswerOf(nil, &Answer{leave: true})); err != nil || !leave.leave {
		t.Errorf("%+v, %v", leave, err)
	}
	if serve, err := parseAppendAnswer(appendAnswerOf(nil, &Answer{serve: true})); err != nil || !serve.serve || serve.leave {
		t.Errorf("%+v, %v", serve, err)
	}
	for _, kind := range []byte{0, answerServe + 1, 255} {
		if _, err := parseAppendAnswer([]byte{0, kind}); !errors.Is(err, wire.ErrBadMessage) {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

func FuzzParseStreamCall(f *testing.F) {
	f.Add(appendStreamCall(nil, 7, "propose", time.Second, []byte("request")))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, method, has, request, err := parseStreamCall(b)
		if err != nil || len(method) > methodBytesMax {
			return
		}
		again := appendStreamCall(nil, id, method, has, request)
		if id2, method2, has2, request2, err := parseStreamCall(again); err != nil || id2 != id || method2 != method || has2 != has || !bytes.Equal(request2, request) {
			t.Fatalf("%x is read as %x", b, again)
		}
	})
}
