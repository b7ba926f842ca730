package shard

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

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
)

// servedReplicaOf opens a replica that answers each call by f, in a goroutine for each.
func servedReplicaOf(t *testing.T, a *appends, group uint32, id raft.ServerID, f func(*raft.AppendEntriesRequest) raft.RPCResponse) {
	t.Helper()
	r := a.served.open(group, id)
	go func() {
		for {
			select {
			case call := <-r.calls:
				go func() { r.respond(call, f(call.args), true) }()
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// taking is the answer of a follower that takes a call.
func taking(args *raft.AppendEntriesRequest) raft.RPCResponse {
	return raft.RPCResponse{Response: &raft.AppendEntriesResponse{Term: args.Term, LastLog: args.PrevLogEntry, Success: true}}
}

// streamTo returns the transport of a group whose appends go to the node there.
func streamTo(t *testing.T, there *rpc.Mux, group uint32) (trans raftTransport, call func(id raft.ServerID, args *raft.AppendEntriesRequest) (raft.AppendEntriesResponse, error)) {
	t.Helper()
	here := testMux(t)
	trans = newRaftTransport(mustLayer(t, here, group), nil, 0, hclog.NewNullLogger())
	trans.appends, trans.group = testAppends(t, here), group
	t.Cleanup(func() { mustDo(t, trans.Close()) })
	return trans, func(id raft.ServerID, args *raft.AppendEntriesRequest) (raft.AppendEntriesResponse, error) {
		var resp raft.AppendEntriesResponse
		err := trans.AppendEntries(id, raft.ServerAddress(there.Addr().String()), args, &resp)
		return resp, err
	}
}

// An append that travels with those of other groups reaches the replica that it names
// and no other, and is refused once that is closed.
func TestStreamedAppendNamesTheReplica(t *testing.T) {
	there := testMux(t)
	a := testAppends(t, there)
	_, call := streamTo(t, there, 7)
	r := a.served.open(7, "n2.0#6")
	go func() {
		got := <-r.calls
		r.respond(got, taking(got.args), true)
	}()
	resp, err := call("n2.0#6", testHeartbeat())
	if err != nil || !resp.Success || resp.Term != 5 {
		t.Fatalf("%+v, %v", resp, err)
	}
	for id, want := range map[raft.ServerID]error{"n2.0#5": rpc.ErrOtherReplica, "n2.0": rpc.ErrOtherReplica} {
		if _, err := call(id, testHeartbeat()); !says(err, want) {
			t.Errorf("%s: %v, want %v", id, err, want)
		}
	}
	answer := make(chan error, 1)
	go func() { _, err := call("n2.0#6", testHeartbeat()); answer <- err }()
	eventually(t, "a call waits", func() bool { return len(r.calls) == 1 })
	r.close()
	if err := <-answer; !says(err, errReplicaAbsent) {
		t.Errorf("of a replica that is closed: %v", err)
	}
	if _, err := call("n2.0#6", testHeartbeat()); !says(err, errReplicaAbsent) {
		t.Errorf("of a replica that is not there: %v", err)
	}
}

// says reports whether an error from another node is that one.
func says(err, want error) bool { return err != nil && strings.Contains(err.Error(), want.Error()) }

// A replica that does not answer keeps no other group's calls waiting, and no more than
// servedAppendsMax calls wait for it.
func TestSlowReplicaDelaysNoOther(t *testing.T) {
	there := testMux(t)
	a := testAppends(t, there)
	trans, slow := streamTo(t, there, 7)
	r := a.served.open(7, "n2.0") // nobody takes its calls
	servedReplicaOf(t, a, 8, "n2.0", taking)
	var waiting sync.WaitGroup
	for range servedAppendsMax {
		waiting.Go(func() { _, _ = slow("n2.0", testAppend()) })
	}
	eventually(t, "they wait", func() bool { return len(r.calls) == servedAppendsMax })
	if _, err := slow("n2.0", testAppend()); !says(err, errReplicaBusy) {
		t.Errorf("one more: %v", err)
	}
	other := trans
	other.group = 8
	for range 100 {
		var resp raft.AppendEntriesResponse
		if err := other.AppendEntries("n2.0", raft.ServerAddress(there.Addr().String()), testAppend(), &resp); err != nil || !resp.Success {
			t.Fatalf("of another group: %+v, %v", resp, err)
		}
	}
	trans.CloseStreams() // ends the calls of a group that closes
	waiting.Wait()
}

// Calls that wait travel in one write, and so do the answers to calls that came
// together; an answer that somebody waits for takes the others along, and none waits
// for longer than answersWait.
func TestCallsAndAnswersTravelTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := newAppendConn(&appendPeer{appends: &appends{}}, here)
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
			s.answer(&appendAnswer{id: 1}, false)
			s.answer(&appendAnswer{id: 2}, false)
			go s.answer(&appendAnswer{id: 3}, waited)
			if n := messagesIn(t, there); n != 3 || time.Since(began) != 0 {
				t.Errorf("%s: %d answers in one write after %v", name, n, time.Since(began))
			}
			synctest.Wait()
		}
		owe()
		began := time.Now()
		s.answer(&appendAnswer{id: 1}, false)
		s.answer(&appendAnswer{id: 2}, false)
		if n := messagesIn(t, there); n != 2 || time.Since(began) != answersWait {
			t.Errorf("one is slow: %d answers in one write after %v", n, time.Since(began))
		}
		s.end()
	})
}

// messagesIn returns how many messages the next write has.
func messagesIn(t *testing.T, conn net.Conn) int {
	t.Helper()
	b := make([]byte, 1<<16)
	n, err := conn.Read(b) // of a net.Pipe: one write's
	mustDo(t, err)
	count := 0
	for b = b[:n]; len(b) > 0; count++ {
		size, err := messageBytes(b)
		mustDo(t, err)
		b = b[messageHeadBytes+size:]
	}
	return count
}

// A connection that is lost fails its calls, which are not sent again, and the next call
// makes another connection.
func TestLostStreamSendsNothingAgain(t *testing.T) {
	there := testMux(t)
	seen := make(chan net.Conn, 2)
	there.ServeAppends(offered(func(conn net.Conn) error { seen <- conn; return nil }))
	_, call := streamTo(t, there, 7)
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
		if err := <-answer; !errors.Is(err, errStreamLost) {
			t.Errorf("told %v", err)
		}
	}
}

// eventuallyCalled calls until the node is dialled again.
func eventuallyCalled(call func(raft.ServerID, *raft.AppendEntriesRequest) (raft.AppendEntriesResponse, error), args *raft.AppendEntriesRequest, answer chan<- error) {
	began := time.Now()
	for {
		_, err := call("n2.0", args)
		if !errors.Is(err, errDialPaused) {
			answer <- err
			return
		}
		if time.Since(began) > eventuallyMax {
			answer <- err
			return
		}
		time.Sleep(time.Millisecond)
	}
}

type offered func(net.Conn) error

func (f offered) Offer(conn net.Conn) error { return f(conn) }

// A call has rpcTimeout. Its answer, if it comes late, is nobody's. The connection stays
// if others were answered meanwhile, and is closed if nothing came.
func TestAppendWithoutAnswer(t *testing.T) {
	for name, heard := range map[string]bool{"others are answered": true, "nothing comes": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				c := newAppendConn(&appendPeer{appends: &appends{}}, here)
				go c.writeCalls()
				go c.readAnswers()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				if heard {
					go func() {
						time.Sleep(rpcTimeout / 2)
						_, _ = there.Write(appendMessage(nil, func(dst []byte) []byte { return appendAnswerOf(dst, &appendAnswer{id: 99}) }))
					}()
				}
				began := time.Now()
				_, err := c.call(7, 1, testHeartbeat(), nil)
				if !errors.Is(err, errAppendTimeout) || time.Since(began) != rpcTimeout {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				_, err = there.Write(appendMessage(nil, func(dst []byte) []byte { return appendAnswerOf(dst, &appendAnswer{id: 1, success: true}) }))
				if (err == nil) != heard {
					t.Errorf("the late answer: %v", err)
				}
				c.fail(io.EOF)
			})
		})
	}
}

// Answers that came before a call, however many, do not keep a connection on which none
// comes for it.
func TestAnswersBeforeACallDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := newAppendConn(&appendPeer{appends: &appends{}}, here)
		c.heard.Store(1 << 62)
		go c.writeCalls()
		go c.readAnswers()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		if _, err := c.call(7, 1, testHeartbeat(), nil); !errors.Is(err, errAppendTimeout) {
			t.Error(err)
		}
		if _, err := c.call(7, 1, testHeartbeat(), nil); !errors.Is(err, errStreamLost) {
			t.Errorf("the connection was kept: %v", err)
		}
		c.fail(io.EOF)
	})
}

// waitedContext counts what waits for its end.
type waitedContext struct {
	context.Context
	all, waiting atomic.Int64
}

func (*waitedContext) Value(any) any { return nil } // else package context passes AfterFunc by

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

// A connection that was lost leaves nothing behind that waits until the node closes: one
// that another node refuses is made again for as long as that is dialled.
func TestLostStreamIsForgotten(t *testing.T) {
	there := testMux(t)
	there.ServeAppends(offered(func(conn net.Conn) error { return conn.Close() }))
	trans, call := streamTo(t, there, 7)
	ctx := &waitedContext{Context: trans.appends.ctx}
	trans.appends.ctx = ctx
	if _, err := call("n2.0", testHeartbeat()); !errors.Is(err, errStreamLost) {
		t.Fatal(err)
	}
	if all := ctx.all.Load(); all != 2 {
		t.Fatalf("%d waited, not the dial and the connection", all)
	}
	eventually(t, "nothing waits", func() bool { return ctx.waiting.Load() == 0 })
}

// heldFSM restores no snapshot before it is released.
type heldFSM struct {
	sumFSM
	restoring, release chan struct{}
}

func (f *heldFSM) Restore(state io.ReadCloser) error {
	close(f.restoring)
	<-f.release
	return f.sumFSM.Restore(state)
}

// An append for a replica that restores its snapshot waits for it, as on a connection of
// the group: one that is refused comes again up to ten seconds later.
func TestAppendWaitsForAReplicaThatOpens(t *testing.T) {
	there := testMux(t)
	cfg := testConfig(t, there, "n1.0")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	mustAdd(t, g, 1)
	mustDo(t, g.snapshot())
	mustClose(t, g)

	fsm := &heldFSM{restoring: make(chan struct{}), release: make(chan struct{})}
	cfg.FSM = fsm
	var opening sync.WaitGroup
	opening.Go(func() {
		g, err := openGroup(cfg)
		if err != nil {
			t.Error(err)
			return
		}
		mustClose(t, g)
	})
	<-fsm.restoring
	_, call := streamTo(t, there, cfg.Group)
	answer := make(chan error, 1)
	go func() { _, err := call(cfg.id(), testHeartbeat()); answer <- err }()
	served := &cfg.Appends.served
	eventually(t, "it arrives", func() bool {
		served.mu.RLock()
		defer served.mu.RUnlock()
		r := served.mu.replicas[cfg.Group]
		return len(answer) == 1 || r != nil && len(r.calls) == 1
	})
	if len(answer) == 1 {
		t.Errorf("it was refused: %v", <-answer)
	}
	close(fsm.release)
	opening.Wait()
}

// What does not fit in a stream's backlog, or in a call of several groups, travels on a
// connection of its own.
func TestLargeAppendTravelsByItself(t *testing.T) {
	c := newAppendConn(&appendPeer{appends: &appends{}}, nil)
	c.mu.out = make([]byte, appendBacklogMax+1)
	if _, err := c.call(7, 1, testHeartbeat(), nil); !errors.Is(err, errNoStream) || len(c.mu.calls) != 0 {
		t.Errorf("beyond the backlog: %v, %d calls", err, len(c.mu.calls))
	}

	there := testMux(t)
	a := testAppends(t, there)
	servedReplicaOf(t, a, 7, "n1.0", taking)
	layer, err := there.Layer(7, "n1.0")
	mustDo(t, err)
	own := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
	t.Cleanup(func() { mustDo(t, own.Close()) })
	go func() {
		for {
			select {
			case rpc := <-own.Consumer():
				rpc.Respond(nil, errors.New("by itself"))
			case <-t.Context().Done():
				return
			}
		}
	}()
	_, call := streamTo(t, there, 7)
	args := testAppend()
	if _, err := call("n1.0", args); err != nil {
		t.Errorf("a small one: %v", err)
	}
	args.Entries[0].Data = make([]byte, appendBytesMax)
	if _, err := call("n1.0", args); err == nil || err.Error() != "by itself" {
		t.Errorf("a large one: %v", err)
	}
}

// While a node of the cluster does not take streams, none is opened.
func TestAppendsOfAnOlderCluster(t *testing.T) {
	there := testMux(t)
	there.ServeAppends(offered(func(net.Conn) error { t.Error("a stream came"); return nil }))
	trans, call := streamTo(t, there, 7)
	trans.appends.cfg.Allowed = func() bool { return false }
	if _, err := call("n2.0", testHeartbeat()); err == nil {
		t.Error("a replica that is not there answered")
	}
	if len(trans.appends.mu.peers) != 0 {
		t.Error("a peer was made")
	}
}

// A connection on which something else comes than calls is closed.
func TestStreamOfSomethingElse(t *testing.T) {
	there := testMux(t)
	a := testAppends(t, there)
	for name, sent := range map[string][]byte{
		"a message that is too long": {0xff, 0, 0, 0},
		"no call":                    {0, 0, 0, 1, 0},
	} {
		conn, err := there.Dial(t.Context(), there.Addr().String(), "", rpc.KindAppend, 0)
		mustDo(t, err)
		_, err = conn.Write(sent)
		mustDo(t, err)
		served := appendMessage(nil, func(dst []byte) []byte { return appendAnswerOf(dst, &appendAnswer{serve: true}) })
		if got, _ := io.ReadAll(conn); !bytes.HasPrefix(served, got) { // an error too ends it
			t.Errorf("%s is answered with %x", name, got)
		}
		mustDo(t, conn.Close())
	}
	if len(a.served.mu.replicas) != 0 {
		t.Error("it made a replica")
	}
}
