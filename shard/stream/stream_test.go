package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/rpc"
)

// servedReplicaOf opens a replica that answers each call with the result of f, in a goroutine for
// each call.
func servedReplicaOf(t *testing.T, a *Streams, group uint32, id raft.ServerID, f func(*raft.AppendEntriesRequest) raft.RPCResponse) {
	t.Helper()
	r := a.served.open(group, id)
	go func() {
		for {
			select {
			case call := <-r.Calls:
				go func() { r.Respond(call, f(call.Args), true) }()
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// streamTo returns streams to the node of target. call sends an append of a group on these streams,
// and stop closes the groups.
func streamTo(t *testing.T, target *rpc.Mux) (streams *Streams, stop func(), call func(group uint32, id raft.ServerID, args *raft.AppendEntriesRequest) (Answer, error)) {
	t.Helper()
	streams = testStreams(t, testMux(t))
	ctx, stop := context.WithCancel(t.Context())
	return streams, stop, func(group uint32, id raft.ServerID, args *raft.AppendEntriesRequest) (Answer, error) {
		conn, err := streams.Conn(nodeOf(id), target.Addr().String(), ctx.Done())
		if err != nil {
			return Answer{}, err
		}
		return conn.Append(group, rpc.Addressee(string(id)), args, ctx.Done())
	}
}

// An append on a stream reaches only the replica that it names. Once that replica is closed, the
// append is refused.
func TestStreamedAppendNamesTheReplica(t *testing.T) {
	there := testMux(t)
	a := testStreams(t, there)
	_, _, call := streamTo(t, there)
	r := a.served.open(7, "n2.0#6")
	go func() {
		got := <-r.Calls
		r.Respond(got, taking(got.Args), true)
	}()
	resp, err := call(7, "n2.0#6", testHeartbeat())
	if err != nil || !resp.Success || resp.Term != 5 {
		t.Fatalf("%+v, %v", resp, err)
	}
	for id, want := range map[raft.ServerID]error{"n2.0#5": rpc.ErrOtherReplica, "n2.0": rpc.ErrOtherReplica} {
		if _, err := call(7, id, testHeartbeat()); !says(err, want) {
			t.Errorf("%s: %v, want %v", id, err, want)
		}
	}
	answer := make(chan error, 1)
	go func() { _, err := call(7, "n2.0#6", testHeartbeat()); answer <- err }()
	eventually(t, "a call waits", func() bool { return len(r.Calls) == 1 })
	r.Close()
	if err := <-answer; !says(err, errReplicaAbsent) {
		t.Errorf("of a replica that is closed: %v", err)
	}
	if _, err := call(7, "n2.0#6", testHeartbeat()); !says(err, errReplicaAbsent) {
		t.Errorf("of a replica that is not there: %v", err)
	}
}

// says reports whether an error from another node contains the text of the wanted error.
func says(err, want error) bool { return err != nil && strings.Contains(err.Error(), want.Error()) }

// A replica that does not answer delays no calls of other groups, and at most servedAppendsMax
// calls wait for that replica.
func TestSlowReplicaDelaysNoOther(t *testing.T) {
	there := testMux(t)
	a := testStreams(t, there)
	_, stop, call := streamTo(t, there)
	r := a.served.open(7, "n2.0") // no goroutine receives its calls
	servedReplicaOf(t, a, 8, "n2.0", taking)
	var waiting sync.WaitGroup
	for range servedAppendsMax {
		waiting.Go(func() { _, _ = call(7, "n2.0", testAppend()) })
	}
	eventually(t, "they wait", func() bool { return len(r.Calls) == servedAppendsMax })
	if _, err := call(7, "n2.0", testAppend()); !says(err, errReplicaBusy) {
		t.Errorf("one more: %v", err)
	}
	for range 100 {
		resp, err := call(8, "n2.0", testAppend())
		if err != nil || !resp.Success {
			t.Fatalf("of another group: %+v, %v", resp, err)
		}
	}
	stop() // ends the calls, as a close of their groups does
	waiting.Wait()
}

// Waiting calls are sent in one write, and so are the answers to calls that arrived together. An
// answer that is sent at once shares its write with the waiting answers. No answer waits for longer
// than answersWait.
func TestCallsAndAnswersTravelTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := newConn(&peer{streams: &Streams{}}, here)
		for range 3 {
			_, _, err := c.enqueue(7, 1, testHeartbeat())
			mustDo(t, err)
		}
		go c.writeCalls()
		if n := messagesIn(t, there); n != 3 {
			t.Errorf("%d calls in one write", n)
		}
		c.fail(io.EOF)

		here, there = net.Pipe()
		s := &servedStream{conn: here, wake: make(chan struct{}, 1), ended: make(chan struct{})}
		go func() { _ = writeStream(here, s.wake, s.ended, s.take) }()
		owe := func() {
			s.owe(true)
			s.owe(true)
			s.owe(false)
		}
		for name, waited := range map[string]bool{"all are answered": false, "somebody waits": true} {
			owe()
			began := time.Now()
			s.answer(&Answer{id: 1}, false)
			s.answer(&Answer{id: 2}, false)
			go s.answer(&Answer{id: 3}, waited)
			if n := messagesIn(t, there); n != 3 || time.Since(began) != 0 {
				t.Errorf("%s: %d answers in one write after %v", name, n, time.Since(began))
			}
			synctest.Wait()
		}
		owe()
		began := time.Now()
		s.answer(&Answer{id: 1}, false)
		s.answer(&Answer{id: 2}, false)
		if n := messagesIn(t, there); n != 2 || time.Since(began) != answersWait {
			t.Errorf("one is slow: %d answers in one write after %v", n, time.Since(began))
		}
		s.end()
	})
}

// messagesIn returns the number of messages in the next write.
func messagesIn(t *testing.T, conn net.Conn) int {
	t.Helper()
	b := make([]byte, 1<<16)
	n, err := conn.Read(b) // a read from a net.Pipe returns the bytes of one write
	mustDo(t, err)
	count := 0
	for b = b[:n]; len(b) > 0; count++ {
		size, err := messageBytes(b)
		mustDo(t, err)
		b = b[messageHeadBytes+size:]
	}
	return count
}

// When a connection is lost, its calls fail and are not sent again. The next call makes another
// connection.
func TestLostStreamSendsNothingAgain(t *testing.T) {
	there := testMux(t)
	seen := make(chan net.Conn, 2)
	there.ServeAppends(offered(func(conn net.Conn) error { seen <- conn; return nil }))
	_, _, call := streamTo(t, there)
	for i := range uint64(2) {
		answer := make(chan error, 1)
		args := testHeartbeat()
		args.Term = 10 + i
		go func() { eventuallyCalled(call, args, answer) }()
		conn := <-seen
		var head [messageHeadBytes]byte
		_, err := io.ReadFull(conn, head[:])
		mustDo(t, err)
		message := make([]byte, head[3])
		_, err = io.ReadFull(conn, message)
		mustDo(t, err)
		id, _, _, got, err := parseAppend(message)
		if err != nil || id != 1 || got.Term != 10+i {
			t.Fatalf("connection %d begins with call %d of term %d, %v", i, id, got.Term, err)
		}
		mustDo(t, conn.Close())
		if err := <-answer; !errors.Is(err, ErrLost) {
			t.Errorf("told %v", err)
		}
	}
}

// eventuallyCalled repeats a call until its error is not ErrUnreached, because the next dial is
// delayed.
func eventuallyCalled(call func(uint32, raft.ServerID, *raft.AppendEntriesRequest) (Answer, error), args *raft.AppendEntriesRequest, answer chan<- error) {
	began := time.Now()
	for {
		_, err := call(7, "n2.0", args)
		if !errors.Is(err, ErrUnreached) {
			answer <- err
			return
		}
		if time.Since(began) > must.BecomeMax {
			answer <- err
			return
		}
		time.Sleep(time.Millisecond)
	}
}

type offered func(net.Conn) error

func (f offered) Offer(conn net.Conn) error { return f(conn) }

// A call ends after AppendTimeoutMax. An answer that comes later is dropped. The connection stays
// open if other calls were answered meanwhile. Otherwise it is closed.
func TestAppendWithoutAnswer(t *testing.T) {
	for name, heard := range map[string]bool{"others are answered": true, "nothing comes": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				c := newConn(&peer{streams: &Streams{}}, here)
				go c.writeCalls()
				go c.readAnswers()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				if heard {
					go func() {
						time.Sleep(AppendTimeoutMax / 2)
						_, _ = there.Write(appendMessage(nil, func(dst []byte) []byte { return appendAnswerOf(dst, &Answer{id: 99}) }))
					}()
				}
				began := time.Now()
				_, err := c.Append(7, 1, testHeartbeat(), nil)
				if !errors.Is(err, errAppendTimeout) || time.Since(began) != AppendTimeoutMax {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				_, err = there.Write(appendMessage(nil, func(dst []byte) []byte { return appendAnswerOf(dst, &Answer{id: 1, Success: true}) }))
				if (err == nil) != heard {
					t.Errorf("the late answer: %v", err)
				}
				c.fail(io.EOF)
			})
		})
	}
}

// Answers that came before a call, however many, do not count: the connection is closed if no
// answer comes after the call.
func TestAnswersBeforeACallDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := newConn(&peer{streams: &Streams{}}, here)
		c.heard.Store(1 << 62)
		go c.writeCalls()
		go c.readAnswers()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		if _, err := c.Append(7, 1, testHeartbeat(), nil); !errors.Is(err, errAppendTimeout) {
			t.Error(err)
		}
		if _, err := c.Append(7, 1, testHeartbeat(), nil); !errors.Is(err, ErrLost) {
			t.Errorf("the connection was kept: %v", err)
		}
		c.fail(io.EOF)
	})
}

// waitedContext counts the functions that wait for its end.
type waitedContext struct {
	context.Context
	all, waiting atomic.Int64
}

func (*waitedContext) Value(any) any { return nil } // otherwise package context does not call AfterFunc

func (c *waitedContext) AfterFunc(f func()) (stop func() bool) {
	c.all.Add(1)
	c.waiting.Add(1)
	forget := context.AfterFunc(c.Context, f)
	return func() bool {
		stopped := forget()
		if stopped {
			c.waiting.Add(-1)
		}
		return stopped
	}
}

// If a node refuses the connection, the streams dial again for as long as a group calls that node.
// So a lost connection must leave no goroutine or timer that waits until this node closes.
func TestLostStreamIsForgotten(t *testing.T) {
	there := testMux(t)
	there.ServeAppends(offered(func(conn net.Conn) error { return conn.Close() }))
	streams, _, call := streamTo(t, there)
	ctx := &waitedContext{Context: streams.ctx}
	streams.ctx = ctx
	if _, err := call(7, "n2.0", testHeartbeat()); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	if all := ctx.all.Load(); all != 2 {
		t.Fatalf("%d waited, not the dial and the connection", all)
	}
	eventually(t, "nothing waits", func() bool { return ctx.waiting.Load() == 0 })
}

// A call fails at once if a stream's backlog has no room.
func TestNoRoomInTheBacklog(t *testing.T) {
	c := newConn(&peer{streams: &Streams{}}, nil)
	c.mu.out = make([]byte, appendBacklogMax+1)
	if _, err := c.Append(7, 1, testHeartbeat(), nil); !errors.Is(err, ErrNoStream) || len(c.mu.calls) != 0 {
		t.Errorf("beyond the backlog: %v, %d calls", err, len(c.mu.calls))
	}
}

// A connection is closed if anything other than calls arrives on it.
func TestStreamOfSomethingElse(t *testing.T) {
	there := testMux(t)
	a := testStreams(t, there)
	for name, sent := range map[string][]byte{
		"a message that is too long": {0xff, 0, 0, 0},
		"no call":                    {0, 0, 0, 1, 0},
	} {
		conn, err := there.Dial(t.Context(), there.Addr().String(), "", rpc.KindAppend, 0)
		mustDo(t, err)
		_, err = conn.Write(sent)
		mustDo(t, err)
		served := appendMessage(nil, func(dst []byte) []byte { return appendAnswerOf(dst, &Answer{serve: true}) })
		if got, _ := io.ReadAll(conn); !bytes.HasPrefix(served, got) { // the connection may also end with an error
			t.Errorf("%s is answered with %x", name, got)
		}
		mustDo(t, conn.Close())
	}
	if len(a.served.mu.replicas) != 0 {
		t.Error("it made a replica")
	}
}
