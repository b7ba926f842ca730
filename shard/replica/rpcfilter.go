package replica

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/stream"
)

// rpcFilter checks the calls from the network before raft gets them. run passes each call to raft
// only after the answer to the previous one. raft's main loop handles one call at a time anyway, so
// this changes no order. But while a check runs, no other call can change the term, the log after
// the commit index, or the applied state.
//
// raft has eleven faults that peers, or late messages, can expose:
//
//  1. raft compares only the term of a snapshot. A snapshot older than the applied state would roll
//     the state back and delete the log, with entries that this replica has acknowledged. So
//     rpcFilter never passes raft a snapshot that the replica already holds (see holds). The
//     replica holds a snapshot if it has applied the snapshot's last index, or if its log has the
//     snapshot's last entry with the same term. In the second case, by Raft's log matching, it has
//     all earlier entries too. The filter passes an empty append instead, so that raft checks the
//     sender's term. Then the filter reports success to the sender, because the snapshot's entries
//     are indeed on disk. raft gets a snapshot only if the log ends before the snapshot's last
//     entry, or has another entry at that index. Then raft deletes only entries that contradict the
//     snapshot or are in it.
//  2. raft does not lower its last index when it deletes the log for a snapshot. If the log was as
//     long as the snapshot, raft would acknowledge, vote and be elected as if it still had the
//     deleted entries. Such a replica is closed and opened again, and until then raft gets no
//     calls. raft cannot campaign either: after a snapshot the transport sends no vote requests
//     until raft's last index is checked (see mayCampaign). A sole voter can elect itself without
//     vote requests, but it gets no such snapshot, because it already holds every committed entry.
//  3. If raft finishes a snapshot of its own while it installs a later one, raft forgets the later
//     one in memory, and its last index is too low. So the filter holds Snapshotter.running during
//     an install. If the lock is not free, the replica is opened again as in 2.
//  4. If the leader's commit index is beyond raft's last entry, raft commits up to its last entry,
//     although it has compared only the entries up to the last entry of the call. So boundCommit
//     bounds the commit index by the last entry of the call.
//  5. raft looks for the entry before an append's entries only in its log. If a snapshot replaced
//     that entry, raft refuses the call for ever. If the call begins at entry 1, raft stores the
//     call's entries and leaves a gap in the log. By Raft's leader completeness, the leader has all
//     entries that are applied here. So skipApplied removes the applied entries from the call.
//  6. raft votes for any candidate while it has no configuration. No election needs the vote of
//     such a replica, because a replica becomes a voter only after it has applied a configuration
//     that includes it. So checkVote refuses votes until then.
//  7. raft votes only for voters of its own latest configuration. So a voter that missed a change
//     of members, and voters that did not, refuse each other. The group may then have no leader
//     although a majority of voters lives. A vote must depend only on term and log. So checkVote
//     replaces the id of a candidate that raft would refuse with the id of a voter.
//  8. raft sends uncommitted entries also to a replica that has no vote or is about to lose it.
//     Such a replica does not campaign. If its log is longer than the voters' logs, the replica
//     refuses all candidates, and the group may have no leader. So the leader sends it only
//     committed entries (awaitCommit).
//  9. A candidate stays a candidate when it gets a snapshot in its own term, and then refuses to
//     vote for others because it knows a leader. So install first passes raft an empty append,
//     which makes the candidate a follower.
//  10. If a replica campaigned after a TimeoutNow and another one won that term, the winner's first
//     append leaves the replica a candidate. The replica considers the winner its leader until the
//     next call. If the winner fails before that call, raft would refuse all other candidates for
//     ever. So the filter makes a candidate consider vote requests although it knows a leader
//     (candidatesLeader).
//  11. A late TimeoutNow makes raft campaign even without a vote. As a leader, such a replica would
//     add entries to its own log. If the group later made it a voter again, it would refuse
//     candidates with shorter logs, even before it learned of that change. So a replica without a
//     vote requests no votes (mayCampaign).
//
// DESIGN.md proves that the group has at most one leader and, with the remedies for faults 7 to 11,
// that it elects one.
//
// handle calls one checking function for each kind of call. If that returns an error, the call is
// refused.
type rpcFilter struct {
	g    *Replica
	log  raft.LogStore // the log cache from which raft also reads
	rpcs chan raft.RPC // raft's Consumer; unbuffered
	// served receives the appends that arrive on a stream; nil without streams. run closes it.
	// answered passes the answer to such an append.
	served   *stream.Inbox
	answered chan raft.RPCResponse
	// answer passes raft's answer to the current call.
	answer chan raft.RPCResponse
	entry  raft.Log // used by termAt
	// barred forbids campaigns. It is set before raft gets a snapshot, and cleared once raft's
	// last index is found to be right.
	barred atomic.Bool
	// raft is nil until raft has started: raft calls the transport before NewRaft returns.
	raft atomic.Pointer[raft.Raft]
}

var (
	// errContradicted stops a group if a leader sent an entry that differs from a committed one.
	errContradicted = errors.New("two leaders have committed different entries")
	// errLastIndex is returned for vote requests while raft's last index may be wrong. If
	// Config.Reopen is nil, the error stops the group.
	errLastIndex  = errors.New("the replica must be opened again: raft's last index is not that of its log")
	errNotInGroup = errors.New("this replica is not in its own configuration")
	// errOutlived is returned for a vote request of a deleted replica.
	errOutlived = errors.New("the candidate's node has a later replica")
	// errNotLeading is returned for a call that this replica may send only while it leads.
	errNotLeading = errors.New("this replica leads no more")
	// errNoVote forbids a campaign of a replica without a vote in its own configuration.
	errNoVote = errors.New("this replica has no vote in its own configuration")
	// errNotLeadersCall is returned for a call that only the leader may make, but another replica
	// made.
	errNotLeadersCall = errors.New("the caller is not this replica's leader")
)

func newRPCFilter(g *Replica, log raft.LogStore) *rpcFilter {
	return &rpcFilter{g: g, log: log, rpcs: make(chan raft.RPC), answer: make(chan raft.RPCResponse, 1), answered: make(chan raft.RPCResponse, 1)}
}

// run passes calls to raft until the group is closed. start starts it; shutdown waits for it.
func (f *rpcFilter) run() {
	calls := f.g.trans.NetworkTransport.Consumer()
	var appends <-chan *stream.Append
	if f.served != nil {
		defer f.served.Close()
		appends = f.served.Calls
	}
	for {
		select {
		case rpc := <-calls:
			f.handle(rpc)
		case call := <-appends:
			f.handle(raft.RPC{Command: call.Args, RespChan: f.answered})
			select {
			case answer := <-f.answered:
				f.served.Respond(call, answer, true)
			default: // the group is closed, so there is no answer
				f.served.Respond(call, raft.RPCResponse{}, false)
			}
		case <-f.g.done:
			return
		}
	}
}

func (f *rpcFilter) handle(rpc raft.RPC) {
	if err := f.g.stop.Usable(); err != nil { // after an interrupted restore, raft's state in memory is older than the disk
		f.respond(rpc, raft.RPCResponse{Error: err})
		return
	}
	var err error
	switch call := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		err = f.checkAppend(call)
		boundCommit(call)
		f.skipApplied(call)
	case *raft.InstallSnapshotRequest:
		if err = f.checkSnapshot(call); err == nil {
			f.install(rpc, call)
			return
		}
	case *raft.TimeoutNowRequest:
		err = f.checkTimeoutNow(call)
	case *raft.RequestVoteRequest:
		var voter bool
		voter, err = f.checkVote(&call.RPCHeader)
		call.LeadershipTransfer = call.LeadershipTransfer && voter || f.candidatesLeader() != ""
	case *raft.RequestPreVoteRequest:
		_, err = f.checkVote(&call.RPCHeader)
		if leader := f.candidatesLeader(); leader != "" {
			call.Addr = []byte(leader) // raft only compares Addr with the address of its leader
		}
	}
	if err != nil {
		f.respond(rpc, raft.RPCResponse{Error: err})
		return
	}
	if answer, ok := f.ask(rpc.Command, nil); ok {
		rpc.Respond(answer.Response, answer.Error)
	}
}

// ask passes a call to raft and returns its answer. It returns false if the group is closed; the
// peer then gets no answer, and its connection is closed.
func (f *rpcFilter) ask(command any, body io.Reader) (raft.RPCResponse, bool) {
	select {
	case f.rpcs <- raft.RPC{Command: command, Reader: body, RespChan: f.answer}:
	case <-f.g.done:
		return raft.RPCResponse{}, false
	}
	select {
	case answer := <-f.answer:
		return answer, true
	case <-f.g.done:
		return raft.RPCResponse{}, false
	}
}

// respond answers a call that raft does not get. It first reads the call's body, in a goroutine,
// because the sender reads the answer only after it has written the whole body.
func (f *rpcFilter) respond(rpc raft.RPC, answer raft.RPCResponse) {
	if rpc.Reader == nil {
		rpc.Respond(answer.Response, answer.Error)
		return
	}
	f.g.wg.Go(func() { // ends with the body, or when the transport closes the connection
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(answer.Response, answer.Error)
	})
}

// install lets raft check the sender's term, passes raft the snapshot unless this replica holds
// it, and then checks raft's last index.
func (f *rpcFilter) install(rpc raft.RPC, call *raft.InstallSnapshotRequest) {
	answer, ok := f.ask(&raft.AppendEntriesRequest{RPCHeader: call.RPCHeader, Term: call.Term}, nil)
	if !ok {
		return
	}
	heard, judged := answer.Response.(*raft.AppendEntriesResponse)
	if !judged || !heard.Success || f.holds(call) {
		if judged {
			answer.Response = &raft.InstallSnapshotResponse{RPCHeader: heard.RPCHeader, Term: heard.Term, Success: heard.Success}
		}
		f.respond(rpc, answer)
		return
	}
	f.barred.Store(true)
	if f.g.Closing() { // Close would not interrupt an install that begins after it
		f.respond(rpc, raft.RPCResponse{Error: errs.ErrGroupClosed})
		return
	}
	alone := f.g.snapshotter.running.TryAcquire(1)
	answer, ok = f.ask(call, rpc.Reader)
	if alone {
		f.g.snapshotter.running.Release(1)
	}
	if !ok {
		return
	}
	resp, judged := answer.Response.(*raft.InstallSnapshotResponse)
	installed := answer.Error == nil && judged && resp.Success
	rpc.Respond(answer.Response, answer.Error)
	if installed && (!alone || f.lastLogIndex() >= call.LastLogIndex) {
		f.reopen(call)
		return
	}
	f.barred.Store(false)
}

// reopen requests that the replica be opened again. Until it is closed, raft gets no call.
func (f *rpcFilter) reopen(call *raft.InstallSnapshotRequest) {
	g := f.g
	g.cfg.Logger.Warn("a snapshot replaced a log of the same length: the replica is opened again",
		"group", g.cfg.Group, "snapshot", call.LastLogIndex, "from", string(call.ID))
	g.Reopen(errLastIndex)
	<-g.done
}

// Reopen asks the owner to open the replica again. Without Config.Reopen it stops the group for
// good, with cause as the reason.
func (g *Replica) Reopen(cause error) {
	if g.cfg.Reopen != nil {
		g.cfg.Reopen()
	} else {
		_ = g.stop.Fail(fmt.Errorf("group %d: %w", g.cfg.Group, cause))
	}
}

// lastLogIndex returns raft's own index of the last entry in its log.
func (f *rpcFilter) lastLogIndex() uint64 {
	index, err := strconv.ParseUint(f.g.raft.Stats()["last_log_index"], 10, 64)
	if err != nil {
		return ^uint64(0) // no log has this index, so the replica is opened again
	}
	return index
}

// holds reports whether this replica already has everything in a snapshot.
func (f *rpcFilter) holds(call *raft.InstallSnapshotRequest) bool {
	if call.LastLogIndex <= f.g.raft.AppliedIndex() {
		return true
	}
	term, known := f.termAt(call.LastLogIndex)
	return known && term == call.LastLogTerm
}

// termAt returns the term of the entry at index. known is false if the entry is neither in the log
// nor the last one of the newest snapshot.
func (f *rpcFilter) termAt(index uint64) (term uint64, known bool) {
	err := f.log.GetLog(index, &f.entry)
	term, f.entry = f.entry.Term, raft.Log{}
	if err == nil {
		return term, true
	}
	newest, term := f.g.snaps.Newest()
	return term, newest > 0 && newest == index
}

// boundCommit bounds a leader's commit index by the last entry that raft compares. The follower
// may have later entries of another leader.
func boundCommit(call *raft.AppendEntriesRequest) {
	call.LeaderCommitIndex = min(call.LeaderCommitIndex, call.PrevLogEntry+uint64(len(call.Entries)))
}

// skipApplied removes applied entries from an append whose previous entry is not in the log. It
// also clears the previous index, so that raft compares no entry before the append. If no entry is
// left, the append becomes a heartbeat.
func (f *rpcFilter) skipApplied(call *raft.AppendEntriesRequest) {
	applied := f.g.raft.AppliedIndex()
	if isHeartbeat(call) || call.PrevLogEntry > applied || call.PrevLogEntry == f.g.raft.LastIndex() {
		return
	}
	err := f.log.GetLog(max(call.PrevLogEntry, 1), &f.entry)
	f.entry = raft.Log{}
	if !errors.Is(err, raft.ErrLogNotFound) {
		return
	}
	call.Entries = slices.DeleteFunc(call.Entries, func(e *raft.Log) bool { return e.Index <= applied })
	call.PrevLogEntry, call.PrevLogTerm = 0, 0
	if len(call.Entries) == 0 {
		call.LeaderCommitIndex = 0
	}
}

// checkAppend stops the group if an append contradicts a committed entry of this replica: the
// leader has another entry at the same index.
//
// checkAppend never stops a correct group. It reads the commit index before the term. So all
// entries up to that commit index were committed in that term or earlier. A leader of that term or
// a later one has the same entries. raft refuses appends of an earlier term, so they are not
// checked. No entry up to the commit index is ever replaced, and compacted entries are not
// compared.
func (f *rpcFilter) checkAppend(call *raft.AppendEntriesRequest) error {
	committed := f.committed()
	if call.Term < f.g.raft.CurrentTerm() {
		return nil
	}
	if call.PrevLogEntry > 0 && call.PrevLogEntry <= committed {
		if err := f.compare(call.RPCHeader, call.Term, call.PrevLogEntry, call.PrevLogTerm); err != nil {
			return err
		}
	}
	for _, e := range call.Entries {
		if e.Index > committed {
			return nil
		}
		if err := f.compare(call.RPCHeader, call.Term, e.Index, e.Term); err != nil {
			return err
		}
	}
	return nil
}

// checkSnapshot stops the group if a snapshot's last entry contradicts this replica's committed
// entry at that index.
func (f *rpcFilter) checkSnapshot(call *raft.InstallSnapshotRequest) error {
	committed := f.committed()
	if call.Term < f.g.raft.CurrentTerm() || call.LastLogIndex > committed {
		return nil
	}
	return f.compare(call.RPCHeader, call.Term, call.LastLogIndex, call.LastLogTerm)
}

// committed returns the highest index known here to be committed.
func (f *rpcFilter) committed() uint64 {
	return max(f.g.raft.CommitIndex(), f.g.raft.AppliedIndex())
}

// compare stops the group if theirs, the term of the sender's entry at index, differs from the term
// of this replica's committed entry there. The sender is the leader of senderTerm.
func (f *rpcFilter) compare(from raft.RPCHeader, senderTerm, index, theirs uint64) error {
	ours, known := f.termAt(index)
	if !known || ours == theirs {
		return nil
	}
	err := fmt.Errorf("group %d: %w: entry %d, which is committed here, is of term %d, and of term %d at %s (%s), which leads term %d",
		f.g.cfg.Group, errContradicted, index, ours, theirs, from.ID, from.Addr, senderTerm)
	f.g.cfg.Logger.Error("the replicas of a group disagree on a committed entry: this one stops for good", "group", f.g.cfg.Group, "err", err)
	return f.g.stop.Fail(err)
}

// checkVote refuses a vote or pre-vote if this replica's own configuration lacks this replica, or
// if the candidate was deleted. It reports whether the candidate is a voter of that configuration.
// If not, it replaces the candidate's id with the id of a voter, because raft refuses a candidate
// that is not a voter of its configuration. This is safe: raft uses the id only for that check. It
// remembers its vote and its leader by the header's Addr, which includes the candidate's own id (see
// EncodePeer).
//
// While this replica knows a leader, only a voter of its configuration may ask for votes, as in a
// handover. A removed replica may not, even after a late TimeoutNow.
func (f *rpcFilter) checkVote(from *raft.RPCHeader) (voter bool, err error) {
	servers, id := f.g.Configuration().Servers, raft.ServerID(from.ID)
	known := slices.IndexFunc(servers, func(s raft.Server) bool { return s.Suffrage == raft.Voter })
	switch {
	case known < 0 || !Contains(servers, f.g.ID()):
		return false, fmt.Errorf("%w: %s votes for nobody in group %d", errNotInGroup, f.g.ID(), f.g.cfg.Group)
	case Outlived(servers, id):
		return false, fmt.Errorf("%w: %s in group %d", errOutlived, id, f.g.cfg.Group)
	case SuffrageOf(servers, id) == raft.Voter:
		return true, nil
	}
	from.ID = []byte(servers[known].ID)
	return false, nil
}

// candidatesLeader returns the address of the leader that raft knows while it is a candidate, or
// "".
func (f *rpcFilter) candidatesLeader() raft.ServerAddress {
	leader, _ := f.g.raft.LeaderWithID() // read the leader before the state, because a candidate that wins becomes its own leader
	if f.g.raft.State() != raft.Candidate {
		return ""
	}
	return leader
}

// checkTimeoutNow refuses an order to campaign at once unless it comes from the leader. The order
// has no term, and raft would obey a late order, even as a leader. checkTimeoutNow also refuses the
// order if this replica may not campaign, because raft raises its term before it requests votes. It
// also refuses the order while the state machine hangs.
func (f *rpcFilter) checkTimeoutNow(call *raft.TimeoutNowRequest) error {
	if err := f.mayCampaign(); err != nil {
		return err
	}
	if f.g.applyHangs.Load() {
		return errHangs
	}
	if _, leader := f.g.raft.LeaderWithID(); f.g.raft.State() != raft.Follower || string(leader) != string(call.ID) {
		return fmt.Errorf("%w: it is %s, not %s", errNotLeadersCall, leader, call.ID)
	}
	return nil
}
