package replica

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
)

// servedReplicaOf opens a replica that answers each append with the result of f, in a goroutine for
// each append.
func servedReplicaOf(t *testing.T, a *stream.Streams, group uint32, id raft.ServerID, f func(*raft.AppendEntriesRequest) raft.RPCResponse) {
	t.Helper()
	r := a.Open(group, id)
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

// transportTo returns the transport of a group whose appends go to the node of target.
func transportTo(t *testing.T, target *rpc.Mux, group uint32) (trans raftTransport, call func(id raft.ServerID, args *raft.AppendEntriesRequest) (raft.AppendEntriesResponse, error)) {
	t.Helper()
	here := testMux(t)
	trans = newRaftTransport(mustLayer(t, here, group), nil, 0, hclog.NewNullLogger())
	trans.streams, trans.beats, trans.group = testStreams(t, here), NewBeats(), group
	t.Cleanup(func() { mustDo(t, trans.Close()) })
	return trans, func(id raft.ServerID, args *raft.AppendEntriesRequest) (raft.AppendEntriesResponse, error) {
		var resp raft.AppendEntriesResponse
		err := trans.AppendEntries(id, raft.ServerAddress(target.Addr().String()), args, &resp)
		return resp, err
	}
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

// An append on a stream waits for a replica that restores its snapshot, like an append on a
// connection of the group. If it were refused, raft would repeat it only up to ten seconds later.
func TestAppendWaitsForAReplicaThatOpens(t *testing.T) {
	there := testMux(t)
	cfg := testConfig(t, there, "n1.0")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	mustAdd(t, g, 1)
	mustDo(t, g.snapshotter.Take())
	mustClose(t, g)

	fsm := &heldFSM{restoring: make(chan struct{}), release: make(chan struct{})}
	cfg.FSM = fsm
	var opening sync.WaitGroup
	opening.Go(func() {
		g, err := Open(cfg)
		if err != nil {
			t.Error(err)
			return
		}
		mustClose(t, g)
	})
	<-fsm.restoring
	_, call := transportTo(t, there, cfg.Group)
	answer := make(chan error, 1)
	go func() { _, err := call(cfg.ID(), testHeartbeat()); answer <- err }()
	eventually(t, "it arrives", func() bool { return len(answer) == 1 || cfg.Streams.Waiting(cfg.Group) == 1 })
	if len(answer) == 1 {
		t.Errorf("it was refused: %v", <-answer)
	}
	close(fsm.release)
	opening.Wait()
}

// Raft pauses longer after each append that fails, so an append to a node that cannot be reached
// waits for the node. A heartbeat fails at once, so that raft knows that it cannot reach the
// follower.
func TestAppendWaitsForANodeThatCannotBeReached(t *testing.T) {
	there := testMux(t)
	servedReplicaOf(t, testStreams(t, there), 7, "n1.0", taking)
	trans, _ := transportTo(t, there, 7)
	var reachable atomic.Bool
	tried := make(chan struct{}, 100)
	trans.streams = stream.New(stream.Config{
		Mux: testMux(t),
		Lookup: func(string) (string, bool) {
			if reachable.Load() {
				return there.Addr().String(), true
			}
			tried <- struct{}{}
			return "127.0.0.1:1", true
		},
	})
	t.Cleanup(trans.streams.Close)
	call := func(id raft.ServerID, args *raft.AppendEntriesRequest) (resp raft.AppendEntriesResponse, err error) {
		err = trans.AppendEntries(id, "127.0.0.1:1", args, &resp)
		return resp, err
	}
	if _, err := call("n1.0", testHeartbeat()); !errors.Is(err, stream.ErrUnreached) {
		t.Errorf("a heartbeat: %v", err)
	}
	answer := make(chan error, 1)
	go func() { _, err := call("n1.0", testAppend()); answer <- err }()
	for range 3 {
		select {
		case <-tried:
		case err := <-answer:
			t.Fatalf("an append failed before the node was reached: %v", err)
		}
	}
	reachable.Store(true)
	if err := <-answer; err != nil {
		t.Errorf("once the node is reached: %v", err)
	}
}

// The end of a stream does not fail an append that is waiting on it. Closing the transport does.
func TestAppendIsSentAgainOnAnotherStream(t *testing.T) {
	there, streams := testMux(t), make(chan struct{}, 100)
	there.ServeAppends(offered(func(conn net.Conn) error { streams <- struct{}{}; return conn.Close() }))
	trans, call := transportTo(t, there, 7)
	answer := make(chan error, 1)
	go func() { _, err := call("n1.0", testAppend()); answer <- err }()
	for range 2 {
		select {
		case <-streams:
		case err := <-answer:
			t.Fatalf("it failed with its stream: %v", err)
		}
	}
	trans.CloseStreams()
	if err := <-answer; err == nil {
		t.Error("it was taken")
	}
}

// Closing the streams ends an append that its follower leaves without an answer.
func TestClosedStreamsEndAppends(t *testing.T) {
	there := testMux(t)
	inbox := testStreams(t, there).Open(7, "n1.0")
	trans, call := transportTo(t, there, 7)
	answer := make(chan error, 1)
	go func() { _, err := call("n1.0", testAppend()); answer <- err }()
	<-inbox.Calls
	trans.CloseStreams()
	select {
	case err := <-answer:
		if err == nil {
			t.Error("it was taken")
		}
	case <-time.After(stream.AppendTimeoutMax - time.Second):
		t.Error("it still waits")
	}
}

// An append that is too large for the stream uses a connection of its group.
func TestLargeAppendTravelsByItself(t *testing.T) {
	there := testMux(t)
	a := testStreams(t, there)
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
	_, call := transportTo(t, there, 7)
	args := testAppend()
	if _, err := call("n1.0", args); err != nil {
		t.Errorf("a small one: %v", err)
	}
	args.Entries[0].Data = make([]byte, stream.AppendBytesMax)
	if _, err := call("n1.0", args); err == nil || err.Error() != "by itself" {
		t.Errorf("a large one: %v", err)
	}
}

type offered func(net.Conn) error

func (f offered) Offer(conn net.Conn) error { return f(conn) }
