package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/errs"
)

func TestCallsCarryBytes(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	b := nodes.node(t, "b", nil)
	for _, size := range []int{0, 1, 100, 70_000, MessageBytesMax} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			request := bytes.Repeat([]byte{'x', 'y'}, size/2+1)[:size]
			got, err := a.Call(testContext(t), "b", "echo", request)
			if err != nil || !bytes.Equal(got, request) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	mustEcho(t, b, "a", "the other way")
	mustEcho(t, a, "a", "to itself")
}

// A starting node may receive calls over other connections before Serve. It refuses them with an
// error that allows a retry.
func TestAnswerBeforeServe(t *testing.T) {
	c, err := NewCalls(CallsConfig{Mux: testMux(t), Lookup: (&callNodes{}).Lookup})
	mustDo(t, err)
	t.Cleanup(c.Close)
	if _, err := c.Answer(t.Context(), "echo", nil); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("before: %v", err)
	}
	c.Handle("echo", func(_ context.Context, request []byte) ([]byte, error) { return request, nil })
	c.Serve()
	if got, err := c.Answer(t.Context(), "echo", []byte("x")); err != nil || string(got) != "x" {
		t.Errorf("after: %q, %v", got, err)
	}
}

func TestCallsCarryErrors(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	nodes.node(t, "b", map[string]Handler{
		"fail": func(_ context.Context, request []byte) ([]byte, error) {
			return []byte("not seen"), fmt.Errorf("group 7: %w", ErrLedBy(string(request)))
		},
		"other": func(context.Context, []byte) ([]byte, error) { return nil, errors.New("of no code") },
		"large": func(context.Context, []byte) ([]byte, error) { return make([]byte, MessageBytesMax+1), nil },
	})
	_, err := a.Call(testContext(t), "b", "fail", []byte("c.1"))
	var told *Error
	if !errors.As(err, &told) || !errors.Is(err, errs.ErrNoLeader) || LeaderHint(err) != "c.1" || told.Text != "group 7: "+errs.ErrNoLeader.Error() {
		t.Errorf("fail: %v", err)
	}
	_, err = a.Call(testContext(t), "b", "other", nil)
	if !errors.As(err, &told) || told.Code != CodeOther || errors.Is(err, ErrCallLost) || errors.Is(err, ErrNotSent) {
		t.Errorf("other: %v", err)
	}
	if _, err = a.Call(testContext(t), "b", "large", nil); !errors.As(err, &told) || !errors.Is(err, ErrTooLarge) {
		t.Errorf("large: %v", err)
	}
	if _, err = a.Call(testContext(t), "b", "unheard", nil); !errors.Is(err, ErrNoMethod) {
		t.Errorf("unheard: %v", err)
	}
	_, err = a.Call(testContext(t), "b", "echo", make([]byte, MessageBytesMax+1))
	if !errors.Is(err, ErrNotSent) || !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large a request: %v", err)
	}
}

func TestCallsThatAreNotSent(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	nodes.Put("down", closed.Addr().String())
	mustDo(t, closed.Close())
	other, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{9}})
	mustDo(t, err)
	defer other.Close()
	nodes.Put("of another cluster", other.Addr().String())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	defer silent.Close()
	nodes.Put("silent", silent.Addr().String())
	for _, name := range []string{"unknown", "down", "of another cluster", "silent"} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				if _, err := a.Call(testContext(t), name, "echo", nil); !errors.Is(err, ErrNotSent) || errors.Is(err, ErrCallLost) {
					t.Errorf("error %v", err)
				}
			}
		})
	}
	t.Run("no time to connect", func(t *testing.T) {
		nodes.Put("silent too", silent.Addr().String())
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := a.Call(ctx, "silent too", "echo", nil)
		if !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

// A call that has been sent:
//
//  1. its handler sees the caller's deadline;
//  2. the handler's context ends when the caller gives up;
//  3. the caller does not report the call as not sent.
func TestCallsEndWithTheirCaller(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	deadlines, ended := make(chan time.Duration, 1), make(chan error, 1)
	nodes.node(t, "b", map[string]Handler{"wait": func(ctx context.Context, _ []byte) ([]byte, error) {
		deadline, _ := ctx.Deadline()
		deadlines <- time.Until(deadline)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	mustEcho(t, a, "b", "they are connected")
	t.Run("deadline", func(t *testing.T) {
		soon, err := time.Second, error(nil)
		for ; ; soon *= 2 { // until the machine sends the call before its deadline
			ctx, cancel := context.WithTimeout(context.Background(), soon)
			_, err = a.Call(ctx, "b", "wait", nil)
			cancel()
			if !errors.Is(err, ErrNotSent) || soon > must.BecomeMax {
				break
			}
		}
		var told *Error // the handler may notice the deadline at the same time as the caller
		if !errors.As(err, &told) && (!errors.Is(err, ErrCallLost) || !errors.Is(err, context.DeadlineExceeded)) {
			t.Errorf("error %v", err)
		}
		if errors.Is(err, ErrNotSent) {
			t.Fatalf("not sent: %v", err)
		}
		if d := <-deadlines; d <= 0 || d > soon {
			t.Errorf("the handler had %v", d)
		}
		<-ended
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			if d := <-deadlines; d <= 0 || d > CallTimeoutMax {
				t.Errorf("the handler had %v", d)
			}
			cancel()
		}()
		_, err := a.Call(ctx, "b", "wait", nil)
		if !errors.Is(err, ErrCallLost) || !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's: %v", err)
		}
	})
}

func TestCallsRefuseWhatIsTooMuch(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a, a2 := nodes.node(t, "a", nil), nodes.node(t, "a2", nil)
	var running atomic.Int64
	release := make(chan struct{})
	b := nodes.node(t, "b", map[string]Handler{"slow": func(_ context.Context, request []byte) ([]byte, error) {
		running.Add(1)
		<-release
		return request, nil
	}})
	var wg sync.WaitGroup
	for range handlersMax {
		wg.Go(func() {
			if _, err := a.Call(testContext(t), "b", "slow", []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all slots are taken", func() bool { return running.Load() == handlersMax })
	t.Run("for one caller", func(t *testing.T) {
		var told *Error
		if _, err := a.Call(testContext(t), "b", "echo", nil); !errors.Is(err, errs.ErrOverloaded) || errors.As(err, &told) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("for the node", func(t *testing.T) {
		for _, size := range []int{1, MessageBytesMax} {
			var told *Error
			if _, err := a2.Call(testContext(t), "b", "echo", make([]byte, size)); !errors.Is(err, errs.ErrOverloaded) || !errors.As(err, &told) {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	})
	t.Run("but pings go on", func(t *testing.T) {
		eventually(t, "something came in a second", func() bool {
			line := a.mu.peers["b"].line.Load()
			before := line.heard.Load()
			a.mu.peers["b"].ping()
			return line.heard.Load() > before
		})
	})
	close(release)
	wg.Wait()
	mustEcho(t, a2, "b", "there is room again")

	b.server.held.Store(requestBytesMax)
	if _, err := a.Call(testContext(t), "b", "echo", []byte("x")); !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("with the memory full: %v", err)
	}
	if held := b.server.held.Add(-requestBytesMax); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
}

func TestCallsFindANodeWhereItIs(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	b := nodes.node(t, "b", nil)
	mustEcho(t, a, "b", "before")
	b.Close()
	mustDo(t, b.cfg.Mux.Close())
	if _, err := a.Call(testContext(t), "b", "echo", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("while it is down: %v", err)
	}
	nodes.node(t, "b", nil) // at another address
	eventually(t, "it answers at its new address", func() bool {
		_, err := a.Call(testContext(t), "b", "echo", nil)
		return err == nil
	})
	nodes.Put("b", "")
	eventually(t, "it is forgotten", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.mu.peers["b"] == nil
	})
	if _, err := a.Call(testContext(t), "b", "echo", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("once it is forgotten: %v", err)
	}
}

func TestCallsFindThatAPeerIsCut(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	started := make(chan struct{}, 1)
	b := nodes.node(t, "b", map[string]Handler{"wait": func(ctx context.Context, _ []byte) ([]byte, error) {
		started <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	proxy := must.NewCable(t, b.cfg.Mux.Addr().String())
	nodes.Put("b", proxy.Addr())
	lost := make(chan error, 1)
	go func() {
		_, err := a.Call(context.Background(), "b", "wait", nil)
		lost <- err
	}()
	<-started
	release := proxy.Hold()
	defer release()
	if err := <-lost; !errors.Is(err, ErrCallLost) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	eventually(t, "its handler is cancelled", func() bool { return len(b.server.slots) == 0 })
	if _, err := a.Call(testContext(t), "b", "echo", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("while it is cut: %v", err)
	}
}

// A peer that does not answer pings:
//
//  1. is not called any more, even before its connection is closed;
//  2. is called again once a byte arrives from it.
func TestCallsDoubtASilentPeer(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	b := nodes.node(t, "b", nil)
	proxy := must.NewCable(t, b.cfg.Mux.Addr().String())
	nodes.Put("b", proxy.Addr())
	mustEcho(t, a, "b", "there")
	release := proxy.Hold()
	eventually(t, "the peer is doubted", func() bool { return a.Doubtful("b") })
	if _, err := a.Call(testContext(t), "b", "echo", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("while it is silent: %v", err)
	}
	a.mu.Lock()
	line := a.mu.peers["b"].line.Load()
	a.mu.Unlock()
	if line.closed.Load() {
		t.Error("its connection was given up first")
	}
	release()
	eventually(t, "the peer is called again", func() bool {
		_, err := a.Call(testContext(t), "b", "echo", nil)
		return err == nil
	})
}

// Closing a node:
//
//  1. handlers that end soon still send their answers;
//  2. other handlers are cancelled;
//  3. Close waits for all handlers;
//  4. the node's own calls end.
func TestCallsClose(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	began := make(chan struct{}, 2)
	soon := make(chan struct{})
	var ended atomic.Int64
	b := nodes.node(t, "b", map[string]Handler{
		"soon": func(_ context.Context, request []byte) ([]byte, error) {
			defer ended.Add(1)
			began <- struct{}{}
			<-soon
			return request, nil
		},
		"never": func(ctx context.Context, _ []byte) ([]byte, error) {
			defer ended.Add(1)
			began <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	results := map[string]chan error{"soon": make(chan error, 1), "never": make(chan error, 1)}
	for method, err := range results {
		go func() {
			_, e := a.Call(testContext(t), "b", method, nil)
			err <- e
		}()
		<-began
	}
	closed := make(chan struct{})
	go func() { b.Close(); close(closed) }()
	eventually(t, "no new calls are taken", func() bool {
		_, err := a.Call(testContext(t), "b", "echo", nil)
		return err != nil
	})
	close(soon)
	if err := <-results["soon"]; err != nil {
		t.Errorf("soon: %v", err)
	}
	if err := <-results["never"]; err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("never: %v", err)
	}
	<-closed
	if n := ended.Load(); n != 2 {
		t.Errorf("%d handlers have ended", n)
	}
	if _, err := b.Call(testContext(t), "a", "echo", nil); !errors.Is(err, errs.ErrDraining) {
		t.Errorf("a call after close: %v", err)
	}
	b.Close()
}

func TestCallsEndWhenTheirNodeCloses(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	began := make(chan struct{})
	nodes.node(t, "b", map[string]Handler{"wait": func(ctx context.Context, _ []byte) ([]byte, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	lost := make(chan error, 1)
	go func() {
		_, err := a.Call(context.Background(), "b", "wait", nil)
		lost <- err
	}()
	<-began
	a.Close()
	if err := <-lost; !errors.Is(err, ErrCallLost) {
		t.Errorf("error %v", err)
	}
}

func TestCallsConfig(t *testing.T) {
	for name, cfg := range map[string]CallsConfig{
		"no mux":    {Lookup: new(callNodes).Lookup},
		"no lookup": {Mux: testMux(t)},
	} {
		if _, err := NewCalls(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A panic of a handler ends the process, because the state that it leaves is unknown.
func TestCallsDoNotSurviveAPanic(t *testing.T) {
	const asked = "COUNTD_TEST_PANIC"
	if os.Getenv(asked) != "" {
		var nodes callNodes
		a := nodes.node(t, "a", map[string]Handler{"panic": func(context.Context, []byte) ([]byte, error) { panic("of a handler") }})
		_, _ = a.Call(testContext(t), "a", "panic", nil)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), asked+"=1")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "panic: of a handler") {
		t.Errorf("%v: %s", err, out)
	}
}
