package replica

import (
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
)

// A heartbeat that is answered without a call shares no memory with its answer: raft reuses the
// memory of both for later calls.
func TestSparedHeartbeatIsLeftAlone(t *testing.T) {
	trans := raftTransport{pause: time.Hour, contacts: &sync.Map{}}
	args := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("n1"), Addr: []byte("a1")}, Term: 7}
	trans.contact("n2").took(time.Now(), args, nil, 0)
	var resp raft.AppendEntriesResponse
	if err := trans.AppendEntries("n2", "a2", args, &resp); err != nil || !resp.Success || resp.Term != 7 {
		t.Fatalf("answered %+v, %v", resp, err)
	}
	copy(resp.ID[:cap(resp.ID)], "n2")
	copy(resp.Addr[:cap(resp.Addr)], "a2")
	if string(args.ID) != "n1" || string(args.Addr) != "a1" {
		t.Errorf("the next heartbeat would come from %s at %s", args.ID, args.Addr)
	}
}

// The idle connections to a replica end when its node restarts. A candidate that used them would
// lose its election, and a leader could not hand over. So a call that fails on such a connection is
// repeated until it has used a new one.
func TestCallsReachARestartedReplica(t *testing.T) {
	header := raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x"), ID: []byte("n1")}
	for name, call := range map[string]func(from raftTransport, at raft.ServerAddress) error{
		"vote": func(from raftTransport, at raft.ServerAddress) error {
			return from.RequestVote("known", at, &raft.RequestVoteRequest{RPCHeader: header}, &raft.RequestVoteResponse{})
		},
		"pre-vote": func(from raftTransport, at raft.ServerAddress) error {
			return from.RequestPreVote("known", at, &raft.RequestPreVoteRequest{RPCHeader: header}, &raft.RequestPreVoteResponse{})
		},
		"handover": func(from raftTransport, at raft.ServerAddress) error {
			return from.TimeoutNow("known", at, &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, there := newRaftTransport(mustLayer(t, testMux(t), 7), nil, 0, hclog.NewNullLogger()), testMux(t)
			t.Cleanup(func() { mustDo(t, from.Close()) })
			at := raft.ServerAddress(there.Addr().String())
			var answered atomic.Int32
			start := func(lives chan struct{}) (stop func()) {
				layer, err := there.Layer(7, "known")
				mustDo(t, err)
				to := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
				go func() { // ends when the transport closes
					for {
						select {
						case rpc := <-to.Consumer():
							<-lives
							switch rpc.Command.(type) {
							case *raft.RequestVoteRequest:
								rpc.Respond(&raft.RequestVoteResponse{}, nil)
							case *raft.RequestPreVoteRequest:
								rpc.Respond(&raft.RequestPreVoteResponse{}, nil)
							default:
								rpc.Respond(&raft.TimeoutNowResponse{}, nil)
							}
							answered.Add(1)
						case <-to.closed.done:
							return
						}
					}
				}()
				return func() { to.CloseStreams(); mustDo(t, to.Close()) }
			}
			both := make(chan struct{})
			stop := start(both)
			var calls sync.WaitGroup
			for range poolConnsMax {
				calls.Go(func() {
					if err := call(from, at); err != nil {
						t.Errorf("before: %v", err)
					}
				})
			}
			time.Sleep(50 * time.Millisecond) // so that each call has a connection of its own
			close(both)
			calls.Wait()
			stop()
			answered.Store(0)
			stop = start(both)
			if err := call(from, at); err != nil || answered.Load() != 1 {
				t.Errorf("after its restart: %v, it answered %d calls", err, answered.Load())
			}
			stop()
			before := from.dials.to("known")
			if err := call(from, at); err == nil || from.dials.to("known") > before+1 {
				t.Errorf("while it is down: %v after %d dials", err, from.dials.to("known")-before)
			}
		})
	}
}

// The first voter of a new group repeats its request for a pre-vote until the other voter has
// opened its replica. The call of any other candidate fails at once.
func TestFirstVoterAsksAgain(t *testing.T) {
	for name, first := range map[string]bool{"the first voter": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			there := testMux(t)
			from := newRaftTransport(mustLayer(t, testMux(t), 7), nil, 0, hclog.NewNullLogger())
			t.Cleanup(func() { mustDo(t, from.Close()) })
			if first {
				from.beginsUntil = time.Now().Add(eventuallyMax)
			}
			request := &raft.RequestPreVoteRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x"), ID: []byte("n1")}, Term: 4}
			var response raft.RequestPreVoteResponse
			answer := make(chan error, 1)
			ask := func() {
				answer <- from.RequestPreVote("n2.0", raft.ServerAddress(there.Addr().String()), request, &response)
			}
			if !first {
				if ask(); <-answer == nil {
					t.Fatal("a replica that is not there answered")
				}
				return
			}
			go ask()
			layer, err := there.Layer(7, "n2.0")
			mustDo(t, err)
			to := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
			t.Cleanup(func() { mustDo(t, to.Close()) })
			go func() {
				rpc := <-to.Consumer()
				rpc.Respond(&raft.RequestPreVoteResponse{Term: 4, Granted: true}, nil)
			}()
			if err := <-answer; err != nil || !response.Granted {
				t.Errorf("%+v, %v", response, err)
			}
		})
	}
}

// A voter remembers its candidate by the bytes of the candidate's address. These bytes differ for
// another replica that has the same address later, and for the next replica on the same node,
// whether or not the address book has the node.
func TestAddressesNameTheReplica(t *testing.T) {
	for name, book := range map[string]addressBook{
		"without addresses":      nil,
		"of a node not known":    func(string) (string, bool) { return "", false },
		"of a node that is gone": func(string) (string, bool) { return "", true },
		"of a node that has one": func(string) (string, bool) { return "127.0.0.1:7401", true },
	} {
		m, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0"})
		mustDo(t, err)
		layer, err := m.Layer(1, "n1.0#2")
		mustDo(t, err)
		trans := newRaftTransport(layer, book, time.Second, hclog.NewNullLogger())
		seen := map[string]raft.ServerID{}
		for _, id := range []raft.ServerID{"n1.0", "n1.0#2", "n1.0#3", "n2.0#2"} {
			sent := string(trans.EncodePeer(id, "127.0.0.1:7401"))
			if other, twice := seen[sent]; twice {
				t.Errorf("%s: %s and %s both have the address %s", name, id, other, sent)
			}
			seen[sent] = id
		}
		mustDo(t, trans.Close())
		mustDo(t, m.Close())
	}
}

// Each call reaches the replica that it is meant for, or none. Another replica may have the address
// in the group's configuration by then.
func TestCallsNameTheReplica(t *testing.T) {
	there := testMux(t)
	at := raft.ServerAddress(there.Addr().String())
	layer, err := there.Layer(7, "n2.0#6")
	mustDo(t, err)
	to := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
	t.Cleanup(func() { mustDo(t, to.Close()) })
	go func() {
		for {
			select {
			case rpc := <-to.Consumer():
				if rpc.Reader != nil {
					_, _ = io.Copy(io.Discard, rpc.Reader)
				}
				rpc.Respond(nil, errors.New("it was reached"))
			case <-t.Context().Done():
				return
			}
		}
	}()
	for known, book := range map[string]addressBook{
		"known":     func(string) (string, bool) { return string(at), true },
		"not known": func(string) (string, bool) { return "", false },
	} {
		from := newRaftTransport(mustLayer(t, testMux(t), 7), book, 0, hclog.NewNullLogger())
		t.Cleanup(func() { mustDo(t, from.Close()) })
		for name, call := range map[string]func(raft.ServerID) error{
			"vote": func(id raft.ServerID) error {
				return from.RequestVote(id, at, &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
			},
			"pre-vote": func(id raft.ServerID) error {
				return from.RequestPreVote(id, at, &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{})
			},
			"append": func(id raft.ServerID) error {
				return from.AppendEntries(id, at, &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
			},
			"snapshot": func(id raft.ServerID) error {
				return from.InstallSnapshot(id, at, &raft.InstallSnapshotRequest{}, &raft.InstallSnapshotResponse{}, strings.NewReader(""))
			},
			"handover": func(id raft.ServerID) error {
				return from.TimeoutNow(id, at, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
			},
		} {
			reached := func(err error) bool { return err != nil && strings.Contains(err.Error(), "it was reached") }
			if err := call("n2.0#6"); !reached(err) {
				t.Errorf("%s, the node is %s: the replica that is meant answered %v", name, known, err)
			}
			if err := call("n2.0#5"); err == nil || reached(err) {
				t.Errorf("%s, the node is %s: another replica answered", name, known)
			}
		}
	}
}
