package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// playedLeader is a follower, n1, whose leader the test plays. The test makes any call that a peer
// or a late message can make, in any order.
type playedLeader struct {
	*Replica
	t        *testing.T
	cfg      Config
	trans    *raft.NetworkTransport // raft's own transport, without the bounds and checks of raftTransport
	reopened chan struct{}
	stopped  chan error
}

// playLeader opens a follower with entry 1, the configuration, in its log.
func playLeader(t *testing.T, store storage.LogStore) *playedLeader {
	t.Helper()
	return playLeaderOf(t, store, func(cfg *Config) { cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}} })
}

func playLeaderOf(t *testing.T, store storage.LogStore, change func(*Config)) *playedLeader {
	t.Helper()
	p := &playedLeader{t: t, reopened: make(chan struct{}, 1), stopped: make(chan error, 1)}
	p.cfg = testConfig(t, testMux(t), "n1")
	p.cfg.LogStore, p.cfg.Timing = store, timingOfAnHour
	p.cfg.Reopen = func() { p.reopened <- struct{}{} }
	p.cfg.Fatal = func(err error) { p.stopped <- err }
	change(&p.cfg)
	p.Replica = mustOpen(t, p.cfg)
	p.trans = p.dialler()
	return p
}

// dialler returns a transport of another node of the group.
func (p *playedLeader) dialler() *raft.NetworkTransport {
	p.t.Helper()
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: mustLayer(p.t, testMux(p.t), p.cfg.Group), Logger: hclog.NewNullLogger(), Timeout: eventuallyMax, MaxPool: 1,
	})
	p.t.Cleanup(func() { mustDo(p.t, trans.Close()) })
	return trans
}

// to returns the address of the follower.
func (p *playedLeader) to() raft.ServerAddress { return raft.ServerAddress(p.cfg.Mux.Addr().String()) }

func headerOf(id string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte("a" + id[1:])}
}

// entriesOf returns the entries first to last of a term. Each entry adds its index to the sum.
func entriesOf(term, first, last uint64) []*raft.Log {
	var entries []*raft.Log
	for i := first; i <= last; i++ {
		entries = append(entries, &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: number(i)})
	}
	return entries
}

// sumOf returns the sum of the indexes that entriesOf adds.
func sumOf(first, last uint64) (sum uint64) {
	for i := first; i <= last; i++ {
		sum += i
	}
	return sum
}

// append sends entries that follow the entry prev of term prevTerm, as the leader of term.
func (p *playedLeader) append(term, prev, prevTerm, commit uint64, entries ...*raft.Log) (*raft.AppendEntriesResponse, error) {
	var resp raft.AppendEntriesResponse
	err := p.trans.AppendEntries("n1", p.to(), &raft.AppendEntriesRequest{
		RPCHeader: headerOf("n2"), Term: term, PrevLogEntry: prev, PrevLogTerm: prevTerm, Entries: entries, LeaderCommitIndex: commit,
	}, &resp)
	return &resp, err
}

func (p *playedLeader) mustAppend(term, prev, prevTerm, commit uint64, entries ...*raft.Log) {
	p.t.Helper()
	if resp, err := p.append(term, prev, prevTerm, commit, entries...); err != nil || !resp.Success {
		p.t.Fatalf("append behind %d: %+v, %v", prev, resp, err)
	}
}

// install sends a snapshot as the leader of leaderTerm. The snapshot has the entries up to index,
// and the last of them is of the given term.
func (p *playedLeader) install(leaderTerm, index, term uint64) (*raft.InstallSnapshotResponse, error) {
	state := binary.LittleEndian.AppendUint64(number(sumOf(2, index)), index-1)
	config := raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "a1"}, {ID: "n2", Address: "a2"}, {ID: "n3", Address: "a3"}}}
	var resp raft.InstallSnapshotResponse
	err := p.trans.InstallSnapshot("n1", p.to(), &raft.InstallSnapshotRequest{
		RPCHeader: headerOf("n2"), SnapshotVersion: raft.SnapshotVersionMax, Term: leaderTerm, LastLogIndex: index, LastLogTerm: term,
		Configuration: raft.EncodeConfiguration(config), ConfigurationIndex: 1, Size: int64(len(state)),
	}, &resp, bytes.NewReader(state))
	return &resp, err
}

func (p *playedLeader) mustInstall(leads, index, term uint64) {
	p.t.Helper()
	if resp, err := p.install(leads, index, term); err != nil || !resp.Success || resp.Term != leads {
		p.t.Fatalf("snapshot of %d: %+v, %v", index, resp, err)
	}
}

// mustHave checks the last applied index and the last index of the log, and waits until the state
// machine has the sum of the applied entries.
func (p *playedLeader) mustHave(applied, last uint64) {
	p.t.Helper()
	if got := p.raft.AppliedIndex(); got != applied {
		p.t.Errorf("applied %d, want %d", got, applied)
	}
	if got, err := p.log.LastIndex(); err != nil || got != last {
		p.t.Errorf("the log ends at %d, %v, want %d", got, err, last)
	}
	if p.t.Failed() {
		p.t.FailNow()
	}
	eventually(p.t, "the state is that of the log", func() bool {
		sum, entries := p.cfg.FSM.(*sumFSM).state()
		return sum == sumOf(2, applied) && entries == applied-1
	})
}

// mustReopen waits until the replica requests to be opened again, and opens it again.
func (p *playedLeader) mustReopen() {
	p.t.Helper()
	select {
	case <-p.reopened:
	case <-time.After(eventuallyMax):
		p.t.Fatal("the replica is not to be opened again")
	}
	mustClose(p.t, p.Replica)
	p.cfg.FSM = &sumFSM{}
	p.Replica = mustOpen(p.t, p.cfg)
}

// A snapshot that arrives late:
//
//  1. changes nothing if its entries are applied or in the log, and its sender learns that the
//     replica has them;
//  2. is refused, with the current term in the answer, if the sender's term is earlier;
//  3. raises the current term if the sender's term is later;
//  4. does not keep the leader from appending entries after the log.
func TestLateSnapshot(t *testing.T) { eachStore(t, testLateSnapshot) }

func testLateSnapshot(t *testing.T, store storage.LogStore) {
	p := playLeader(t, store)
	p.mustAppend(2, 1, 1, 15, entriesOf(2, 2, 20)...)
	p.mustHave(15, 20)
	for _, index := range []uint64{10, 15, 18, 20} {
		p.mustInstall(2, index, 2)
		p.mustHave(15, 20)
	}
	if resp, err := p.install(1, 10, 2); err != nil || resp.Success || resp.Term != 2 {
		t.Errorf("of an earlier term: %+v, %v", resp, err)
	}
	p.mustInstall(3, 10, 2)
	if got := p.raft.CurrentTerm(); got != 3 || p.Leader() != "n2" {
		t.Errorf("term %d, leader %s", got, p.Leader())
	}
	p.mustAppend(3, 20, 2, 21, entriesOf(3, 21, 22)...)
	p.mustHave(21, 22)
	if names, err := p.snaps.Names(); err != nil || len(names) != 0 {
		t.Errorf("snapshots %v, %v", names, err)
	}
}

// A snapshot replaces a log that is at least as long and has another term at the snapshot's last
// index:
//
//  1. the replica is opened again, with the snapshot's last index;
//  2. until then it answers no call and requests no votes;
//  3. afterwards it stores entries that follow the snapshot.
func TestSnapshotInPlaceOfALongerLog(t *testing.T) {
	eachStore(t, testSnapshotInPlaceOfALongerLog)
}

func testSnapshotInPlaceOfALongerLog(t *testing.T, store storage.LogStore) {
	for name, index := range map[string]uint64{"shorter": 10, "equal": 12} {
		t.Run(name, func(t *testing.T) {
			p := playLeader(t, store)
			p.mustAppend(2, 1, 1, 8, entriesOf(2, 2, 12)...)
			// A connection that was opened before the snapshot ends when the replica closes. A late
			// vote request does not reach the reopened replica, which might grant the vote.
			candidate := p.dialler()
			mustDo(t, candidate.AppendEntries("n1", p.to(), &raft.AppendEntriesRequest{RPCHeader: headerOf("n3")}, &raft.AppendEntriesResponse{}))
			p.mustInstall(4, index, 3)
			vote := make(chan error, 1)
			go func() {
				request := &raft.RequestVoteRequest{RPCHeader: headerOf("n3"), Term: 9, LastLogIndex: 99, LastLogTerm: 8}
				var resp raft.RequestVoteResponse
				err := candidate.RequestVote("n1", p.to(), request, &resp)
				if err == nil {
					err = errNotANumber
				}
				vote <- err
			}()
			eventually(t, "raft may not campaign", func() bool {
				var resp raft.RequestPreVoteResponse
				var vote raft.RequestVoteResponse
				return errors.Is(p.Replica.trans.RequestPreVote("n2", "a2", &raft.RequestPreVoteRequest{}, &resp), errLastIndex) &&
					errors.Is(p.Replica.trans.RequestVote("n2", "a2", &raft.RequestVoteRequest{}, &vote), errLastIndex)
			})
			p.mustReopen()
			if err := <-vote; errors.Is(err, errNotANumber) || p.raft.CurrentTerm() != 4 {
				t.Errorf("it voted on entries that are gone, in term %d", p.raft.CurrentTerm())
			}
			if got := p.raft.LastIndex(); got != index {
				t.Errorf("its last index is %d", got)
			}
			p.mustAppend(4, index, 3, index+2, entriesOf(4, index+1, index+2)...)
			p.mustHave(index+2, index+2)
		})
	}
}

// A snapshot that ends after the log does not require that the replica be opened again.
func TestSnapshotBehindTheLog(t *testing.T) { eachStore(t, testSnapshotBehindTheLog) }

func testSnapshotBehindTheLog(t *testing.T, store storage.LogStore) {
	p := playLeader(t, store)
	p.mustAppend(2, 1, 1, 8, entriesOf(2, 2, 12)...)
	p.mustInstall(2, 20, 2)
	p.mustAppend(2, 20, 2, 21, entriesOf(2, 21, 21)...)
	p.mustHave(21, 21)
	if err := p.trans.RequestVote("n1", p.to(), &raft.RequestVoteRequest{RPCHeader: headerOf("n2"), Term: 3}, &raft.RequestVoteResponse{}); err != nil {
		t.Error(err)
	}
	if err := p.Replica.trans.filter.mayCampaign(); err != nil || len(p.reopened) > 0 {
		t.Errorf("%v, to be opened again: %d", err, len(p.reopened))
	}
}

// A leader's commit index proves nothing about an entry that the leader did not compare.
func TestCommitEndsWhereTheLeaderCompared(t *testing.T) {
	eachStore(t, testCommitEndsWhereTheLeaderCompared)
}

func testCommitEndsWhereTheLeaderCompared(t *testing.T, store storage.LogStore) {
	p := playLeader(t, store)
	p.mustAppend(2, 1, 1, 9, entriesOf(2, 2, 11)...)
	p.mustAppend(3, 10, 2, 11) // without entries, so the leader has not compared its entry 11 with the follower's
	p.mustHave(10, 11)
	p.mustAppend(3, 10, 2, 11, entriesOf(3, 11, 12)...)
	p.mustHave(11, 12)
}

func TestTransportBoundsTheCommitIndex(t *testing.T) {
	from, _ := testTransport(t)
	to, layer := testTransport(t)
	received := make(chan uint64, 1)
	go func() {
		rpc := <-to.Consumer()
		received <- rpc.Command.(*raft.AppendEntriesRequest).LeaderCommitIndex
		rpc.Respond(&raft.AppendEntriesResponse{Term: 4, Success: true}, nil)
	}()
	args := &raft.AppendEntriesRequest{RPCHeader: headerOf("n1"), Term: 4, PrevLogEntry: 10, Entries: entriesOf(4, 11, 12), LeaderCommitIndex: 20}
	mustDo(t, from.AppendEntries("known", raft.ServerAddress(layer.Addr().String()), args, &raft.AppendEntriesResponse{}))
	if got := <-received; got != 12 || args.LeaderCommitIndex != 20 {
		t.Errorf("commit index %d is sent, raft's is %d", got, args.LeaderCommitIndex)
	}
}

// A log has stale entries after the last index of a snapshot, but no longer has the entry at that
// index. A later leader's entries replace the stale ones, wherever its append begins.
func TestStaleEntriesBehindASnapshot(t *testing.T) {
	eachStore(t, testStaleEntriesBehindASnapshot)
}

func testStaleEntriesBehindASnapshot(t *testing.T, store storage.LogStore) {
	p := playLeader(t, store)
	p.mustInstall(2, 10, 2)
	p.mustAppend(2, 10, 2, 10, entriesOf(2, 11, 13)...)
	if resp, err := p.append(2, 10, 2, 10, entriesOf(2, 11, 11)...); err != nil || !resp.Success {
		t.Errorf("the same again: %+v, %v", resp, err)
	}
	p.mustAppend(3, 10, 2, 11, entriesOf(3, 11, 12)...)
	p.mustHave(11, 12)
	p.mustAppend(3, 7, 2, 12, append(entriesOf(2, 8, 10), entriesOf(3, 11, 14)...)...)
	p.mustHave(12, 14)
	p.mustAppend(3, 5, 2, 14, entriesOf(2, 6, 9)...)
	p.mustHave(12, 14)
	if resp, err := p.append(2, 5, 2, 14, entriesOf(2, 6, 9)...); err != nil || resp.Success || resp.Term != 3 {
		t.Errorf("of an earlier term: %+v, %v", resp, err)
	}
}

// The first entries of a new replica arrive again after a snapshot has replaced them.
func TestFirstEntriesArriveLate(t *testing.T) { eachStore(t, testFirstEntriesArriveLate) }

func testFirstEntriesArriveLate(t *testing.T, store storage.LogStore) {
	p := playLeaderOf(t, store, func(*Config) {})
	first := append([]*raft.Log{{Index: 1, Term: 1, Type: raft.LogNoop}}, entriesOf(2, 2, 5)...)
	p.mustInstall(2, 10, 2)
	p.mustAppend(2, 0, 0, 5, first...)
	p.mustHave(10, 0)
	p.mustAppend(2, 10, 2, 11, entriesOf(2, 11, 11)...)
	p.mustHave(11, 11)
	if got, err := p.log.FirstIndex(); err != nil || got != 11 {
		t.Errorf("the log begins at %d, %v", got, err)
	}
	p.mustAppend(2, 0, 0, 11, append(first, entriesOf(2, 6, 12)...)...)
	p.mustHave(11, 12)
}

// slowFSM writes a snapshot only once the test allows it.
type slowFSM struct {
	sumFSM
	writing, write chan struct{}
}

type slowSnapshot struct {
	raft.FSMSnapshot
	fsm *slowFSM
}

func (f *slowFSM) Snapshot() (raft.FSMSnapshot, error) {
	s, err := f.sumFSM.Snapshot()
	return slowSnapshot{s, f}, err
}

func (s slowSnapshot) Persist(sink raft.SnapshotSink) error {
	s.fsm.writing <- struct{}{}
	<-s.fsm.write
	return s.FSMSnapshot.Persist(sink)
}

// A leader's snapshot comes while the replica writes its own, which ends later. The leader's
// snapshot is the newest afterwards.
func TestSnapshotsCross(t *testing.T) {
	fsm := &slowFSM{writing: make(chan struct{}), write: make(chan struct{})}
	p := playLeaderOf(t, storage.LogStoreBoltDB, func(cfg *Config) {
		cfg.Initial, cfg.FSM = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}, fsm
	})
	p.mustAppend(2, 1, 1, 12, entriesOf(2, 2, 12)...)
	eventually(t, "all is applied", func() bool { _, entries := fsm.state(); return entries == 11 })
	var own sync.WaitGroup
	own.Go(func() { _ = p.snapshotter.Take() })
	<-fsm.writing
	p.mustInstall(2, 20, 2)
	close(fsm.write)
	own.Wait()
	if got := p.snaps.NewestIndex(); got != 20 {
		t.Errorf("the newest snapshot is of %d", got)
	}
	p.mustReopen()
	if got := p.raft.LastIndex(); got != 20 {
		t.Errorf("its last index is %d", got)
	}
	p.mustAppend(2, 20, 2, 21, entriesOf(2, 21, 21)...)
	p.mustHave(21, 21)
}

// A call that proves that two leaders have committed different entries stops the group. Any other
// call does not.
func TestContradictionStopsTheGroup(t *testing.T) {
	ready := func(t *testing.T) *playedLeader {
		p := playLeader(t, storage.LogStoreBoltDB)
		p.mustInstall(2, 10, 2)
		p.mustAppend(2, 10, 2, 15, entriesOf(2, 11, 20)...)
		p.mustHave(15, 20)
		return p
	}
	for name, call := range map[string]func(p *playedLeader) error{
		"an entry": func(p *playedLeader) error {
			_, err := p.append(3, 13, 2, 13, append(entriesOf(2, 14, 14), entriesOf(3, 15, 15)...)...)
			return err
		},
		"the entry before": func(p *playedLeader) error { _, err := p.append(2, 12, 1, 13); return err },
		"the entry before, in the snapshot": func(p *playedLeader) error {
			_, err := p.append(3, 10, 3, 13, entriesOf(3, 11, 11)...)
			return err
		},
		"a snapshot": func(p *playedLeader) error { _, err := p.install(3, 14, 3); return err },
	} {
		t.Run(name, func(t *testing.T) {
			p := ready(t)
			if err := call(p); err == nil || !strings.Contains(err.Error(), errContradicted.Error()) {
				t.Errorf("answered with %v", err)
			}
			if err := p.stop.Failure(); !errors.Is(err, errContradicted) || !strings.Contains(err.Error(), "n2 (a2)") {
				t.Errorf("stopped with %v", err)
			}
			eventually(t, "it is told", func() bool { return len(p.stopped) == 1 })
		})
	}
	t.Run("nothing", func(t *testing.T) {
		p := ready(t)
		p.mustAppend(3, 14, 2, 15, append(entriesOf(2, 15, 16), entriesOf(3, 17, 18)...)...) // the entries that these replace are not committed here
		p.mustAppend(3, 5, 9, 9, entriesOf(9, 6, 9)...)                                      // this replica has compacted these entries
		for _, late := range [][]*raft.Log{entriesOf(1, 12, 15), entriesOf(2, 17, 20)} {
			resp, err := p.append(2, late[0].Index-1, late[0].Term, 20, late...)
			if err != nil || resp.Success {
				t.Errorf("late: %+v, %v", resp, err)
			}
		}
		if resp, err := p.install(2, 15, 1); err != nil || resp.Success {
			t.Errorf("late: %+v, %v", resp, err)
		}
		p.mustAppend(3, 18, 3, 18)
		p.mustHave(18, 18)
		mustDo(t, p.stop.Failure())
	})
}

// A replica obeys an order to campaign at once only if it comes from its leader.
func TestTimeoutNowIsTheLeaders(t *testing.T) {
	p := playLeader(t, storage.LogStoreBoltDB)
	p.mustAppend(2, 1, 1, 5, entriesOf(2, 2, 5)...)
	timeoutNow := func(from string) error {
		return p.trans.TimeoutNow("n1", p.to(), &raft.TimeoutNowRequest{RPCHeader: headerOf(from)}, &raft.TimeoutNowResponse{})
	}
	if err := timeoutNow("n3"); err == nil || p.raft.CurrentTerm() != 2 || p.raft.State() != raft.Follower {
		t.Errorf("%v, %s in term %d", err, p.raft.State(), p.raft.CurrentTerm())
	}
	mustDo(t, timeoutNow("n2"))
	eventually(t, "it stands for election", func() bool { return p.raft.CurrentTerm() == 3 })
	if err := timeoutNow("n2"); err == nil {
		t.Error("a candidate is told again")
	}
}

// A replica without a vote in its own configuration does not campaign, even if it is told to lead.
// If it loses its vote while it is a candidate, it stops requesting votes.
func TestReplicaWithoutAVoteDoesNotCampaign(t *testing.T) {
	for name, told := range map[string]bool{"then told to lead": false, "told to lead before": true} {
		t.Run(name, func(t *testing.T) {
			p := playLeaderOf(t, storage.LogStoreBoltDB, func(cfg *Config) {
				cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}
			})
			p.mustAppend(2, 1, 1, 1, entriesOf(2, 2, 5)...)
			timeoutNow := func() error {
				return p.trans.TimeoutNow("n1", p.to(), &raft.TimeoutNowRequest{RPCHeader: headerOf("n2")}, &raft.TimeoutNowResponse{})
			}
			term := uint64(2)
			if told {
				mustDo(t, timeoutNow())
				eventually(t, "it campaigns", func() bool { return p.raft.CurrentTerm() == 3 })
				mustDo(t, p.Replica.trans.filter.mayCampaign())
				term = 3 // n2 wins this term
			}
			demoted := raft.Configuration{Servers: []raft.Server{
				{ID: "n1", Address: "a1", Suffrage: raft.Nonvoter}, {ID: "n2", Address: "a2"}, {ID: "n3", Address: "a3"},
			}}
			p.mustAppend(term, 5, 2, 6, &raft.Log{Index: 6, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(demoted)})
			if !told {
				if err := timeoutNow(); err == nil || p.raft.CurrentTerm() != term || p.raft.State() != raft.Follower {
					t.Errorf("%v, %s in term %d", err, p.raft.State(), p.raft.CurrentTerm())
				}
			}
			if err := p.Replica.trans.RequestPreVote("n3", "a3", &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{}); !errors.Is(err, errNoVote) {
				t.Errorf("it campaigns: %v", err)
			}
		})
	}
}

// A replica that begins empty votes for nobody, whatever the candidate's log, until its own log
// shows that it is a member.
func TestNoVoteBeforeItIsAMember(t *testing.T) {
	p := playLeaderOf(t, storage.LogStoreBoltDB, func(*Config) {})
	asks := func(term uint64) (granted, would bool) {
		t.Helper()
		var pre raft.RequestPreVoteResponse
		preErr := p.trans.RequestPreVote("n1", p.to(), &raft.RequestPreVoteRequest{
			RPCHeader: headerOf("n3"), Term: term, LastLogIndex: 100, LastLogTerm: term - 1,
		}, &pre)
		var resp raft.RequestVoteResponse
		err := p.trans.RequestVote("n1", p.to(), &raft.RequestVoteRequest{
			RPCHeader: headerOf("n3"), Term: term, LastLogIndex: 100, LastLogTerm: term - 1, LeadershipTransfer: true,
		}, &resp)
		if (err == nil) != (preErr == nil) {
			t.Fatalf("vote: %v, pre-vote: %v", err, preErr)
		}
		return resp.Granted, pre.Granted
	}
	configured := func(term, index uint64, ids ...raft.ServerID) {
		t.Helper()
		var c raft.Configuration
		for _, id := range ids {
			c.Servers = append(c.Servers, raft.Server{ID: id, Address: raft.ServerAddress("a" + id[1:])})
		}
		p.mustAppend(term, index-1, min(term, index-1), index,
			&raft.Log{Index: index, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)})
	}
	if granted, would := asks(5); granted || would || p.raft.CurrentTerm() != 0 {
		t.Errorf("blank: granted %v, would %v, in term %d", granted, would, p.raft.CurrentTerm())
	}
	configured(1, 1, "n2", "n3", "n4")
	if granted, would := asks(5); granted || would {
		t.Errorf("in a group of others: granted %v, would %v", granted, would)
	}
	configured(1, 2, "n2", "n3", "n1")
	if granted, _ := asks(5); !granted {
		t.Error("a member refuses its vote")
	}
}

// A deposed leader has a longer log than the others, but its additional entries are not committed.
// It then follows a leader that began from a snapshot and has no other entries to send. The deposed
// leader is opened again once, and all replicas agree.
func TestDeposedLeaderWithALongerLog(t *testing.T) {
	eachStore(t, testDeposedLeaderWithALongerLog)
}

func testDeposedLeaderWithALongerLog(t *testing.T, store storage.LogStore) {
	r := newReplicas(t, store)
	r.add(t, 7, -1)
	r.mustAgree(t, -1)
	old := r.leader(t, -1)
	for _, g := range r.groups {
		mustClose(t, g)
	}
	withLog := func(i int, change func(l *storage.Log, last *raft.Log)) {
		stores := mustOpenStores(t, store, r.cfgs[i].Dir)
		l := storage.NewLog(stores, r.cfgs[i].Group, "log", 1<<40, noFatal(t))
		var last raft.Log
		index, err := l.LastIndex()
		mustDo(t, err)
		mustDo(t, l.GetLog(index, &last))
		change(l, &last)
		mustDo(t, stores.Close())
	}
	var longer uint64
	withLog(old, func(l *storage.Log, last *raft.Log) {
		longer = last.Index + 100
		for i := last.Index + 1; i <= longer; i++ {
			mustDo(t, l.StoreLog(&raft.Log{Index: i, Term: last.Term, Type: raft.LogCommand, Data: number(1000)}))
		}
	})
	for i := range r.groups {
		if i != old {
			r.open(t, i)
		}
	}
	r.add(t, 3, old)
	r.mustAgree(t, old)
	for i, g := range r.groups {
		if i == old {
			continue
		}
		mustDo(t, g.snapshotter.Take())
		mustClose(t, g)
		withLog(i, func(l *storage.Log, last *raft.Log) {
			first, err := l.FirstIndex()
			mustDo(t, err)
			mustDo(t, l.DeleteRange(first, g.snaps.NewestIndex()))
			if last.Index >= longer {
				t.Fatalf("the log ends at %d", last.Index)
			}
		})
		r.open(t, i)
	}
	reopened := make(chan struct{}, 1)
	r.cfgs[old].Reopen = func() { reopened <- struct{}{} }
	r.open(t, old)
	select {
	case <-reopened:
	case <-time.After(eventuallyMax):
		t.Fatal("it is not opened again")
	}
	mustClose(t, r.groups[old])
	r.open(t, old)
	r.add(t, 5, -1)
	r.mustAgree(t, -1)
	if len(reopened) > 0 {
		t.Error("it is opened again twice")
	}
}
