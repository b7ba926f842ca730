package replica

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/stream"
)

// rpcFilter filters the calls between the network and raft. rpcs is raft's Consumer, and run
// passes one call at a time to it, each after the answer to the previous one. raft's main loop
// handles one call at a time anyway, so this changes no order. It gives the checks below a
// guarantee that raft alone does not give: while a check runs, no other call changes the term, the
// log after the commit index, or the applied state.
//
// raft has eleven gaps that peers, or late messages, can expose:
//
//  1. raft compares only the term of a snapshot. A snapshot older than the applied state would roll
//     the state back and delete the log, with entries that this replica has acknowledged. So
//     rpcFilter never passes raft a snapshot that the replica already holds (holds): its index is
//     applied, or the log has its last entry with the same term, and so, by Raft's log matching,
//     everything before. The filter sends an empty append in the snapshot's place, so that raft
//     judges the sender's term. Then it reports success to the sender, which is true of the log on
//     disk. raft gets a snapshot only if the log has another entry in its place, or ends before it.
//     Then raft deletes only entries that contradict the snapshot or are in it.
//  2. raft does not lower its last index when it deletes the log for a snapshot. If the log was as
//     long as the snapshot, raft would acknowledge, vote and be elected on entries that are gone.
//     Such a replica is closed and opened again, and no more calls reach raft. raft cannot campaign
//     either: from before it gets a snapshot until its last index is checked, the transport sends
//     no vote requests (see mayCampaign). A replica that needs no other vote already holds
//     everything committed.
//  3. If raft's own snapshot ends while raft installs a later one, it replaces the later one in
//     raft's memory, and raft's last index is too low. The filter holds snapshotting meanwhile. If
//     it is already locked, the replica is opened again as in 2.
//  4. If the leader's commit index is beyond raft's last entry, raft commits up to that entry,
//     although it has compared only entries up to the last one of the call. So boundCommit bounds
//     the commit index by that entry, for peers that send it unbounded.
//  5. raft looks for the entry before an append's entries only in its log. If a snapshot replaced
//     that entry, raft refuses the call for ever. If the call begins at entry 1, raft stores it and
//     leaves a gap. What is applied here is also the leader's, by Raft's leader completeness. So
//     skipApplied passes on only the later entries.
//  6. raft votes for any candidate while it has no configuration. Such a replica knows nothing of
//     its group, and nobody counts on its vote: it becomes a voter only after it has applied a
//     configuration that includes it. So it votes only then (checkVote).
//  7. raft votes only for voters of its own latest configuration. A voter that missed a change of
//     members and voters that did not miss it refuse each other. The group then has no leader
//     although a majority lives. A vote must depend only on term and log. So checkVote replaces the
//     id of a candidate that raft would refuse with the id of a voter.
//  8. raft sends uncommitted entries to a replica without a vote, or one that is losing it. Such a
//     replica does not campaign, and if it has the longest log of a majority, it refuses all
//     candidates. So it gets only committed entries (awaitCommit).
//  9. raft stays a candidate when it gets a snapshot in its own term, and then refuses its vote to
//     others because it knows a leader. So an append makes it a follower first (install).
//  10. If raft campaigned because it was told to lead, and the winner of that term sends it an
//     append, raft stays a candidate and knows the winner as its leader until the next call. If the
//     winner is lost, raft would refuse the others for ever. So the filter makes a candidate judge
//     votes although it knows a leader (candidatesLeader).
//  11. raft lets a replica without a vote campaign if it is told to lead by a late call. As a
//     leader it would add entries to its own log. Once it has a vote again, it would refuse shorter
//     logs, although it has missed the change that gave it that vote. So it requests no votes
//     (mayCampaign).
//
// DESIGN.md proves that the group has at most one leader, and, with 7 to 11, that it gets one.
//
// Each call has one function that checks it, called by handle. An error refuses the call.
type rpcFilter struct {
	g    *Replica
	log  raft.LogStore // as raft reads it
	rpcs chan raft.RPC // unbuffered, from run to raft
	// served receives the appends that travel with those of other groups; nil for none. run closes
	// it. answered has the answer to the append that run handles.
	served   *stream.Inbox
	answered chan raft.RPCResponse
	// answer has raft's answer to the last call.
	answer chan raft.RPCResponse
	entry  raft.Log // used by termAt
	// barred is set before raft gets a snapshot. It is cleared once raft's last index was found to
	// be right.
	barred atomic.Bool
	// raft is nil until raft has started: raft calls the transport before NewRaft returns.
	raft atomic.Pointer[raft.Raft]
}

// withheldPause is the pause between two checks of awaitCommit: a small part of a commit's time.
const withheldPause = time.Millisecond

var (
	// errContradicted stops a group if a leader sent an entry that differs from a committed one.
	errContradicted = errors.New("two leaders have committed different entries")
	// errLastIndex is returned for vote requests while raft's last index may be wrong. It stops a
	// group that nobody opens again.
	errLastIndex = errors.New("the replica must be opened again: raft's last index is not that of its log")
	// errNotInGroup is returned for a vote request if this replica's own configuration lacks this
	// replica.
	errNotInGroup = errors.New("this replica is not in its own configuration")
	// errOutlived is returned for a vote request of a replica that was deleted.
	errOutlived = errors.New("the candidate's node has a later replica")
	// errNotLeading ends a held-back append once its sender no longer leads.
	errNotLeading = errors.New("this replica leads no more")
	// errNoVote is returned for a campaign of a replica without a vote in its own configuration.
	errNoVote = errors.New("this replica has no vote in its own configuration")
	// errNotLeadersCall is returned if another replica makes a call that only the leader may make.
	errNotLeadersCall = errors.New("the caller is not this replica's leader")
)

func newRPCFilter(g *Replica, log raft.LogStore) *rpcFilter {
	return &rpcFilter{g: g, log: log, rpcs: make(chan raft.RPC), answer: make(chan raft.RPCResponse, 1), answered: make(chan raft.RPCResponse, 1)}
}

// run passes calls on until the group is closed. start starts it; shutdown waits for it.
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
			default: // the group is closed
				f.served.Respond(call, raft.RPCResponse{}, false)
			}
		case <-f.g.done:
			return
		}
	}
}

func (f *rpcFilter) handle(rpc raft.RPC) {
	if err := f.g.stop.Usable(); err != nil { // after an interrupted restore, raft knows less than the disk
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
			call.Addr = []byte(leader) // raft compares it with its leader and uses it for nothing else
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

// ask passes a call to raft and returns its answer. It returns false once the group is closed: the
// caller then gets no answer, and its connection is closed.
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

// respond answers a call that raft did not get. It reads the call's body first, because the sender
// writes all of it before it reads the answer. Other calls continue meanwhile.
func (f *rpcFilter) respond(rpc raft.RPC, answer raft.RPCResponse) {
	if rpc.Reader == nil {
		rpc.Respond(answer.Response, answer.Error)
		return
	}
	f.g.wg.Go(func() { // ends with the body or its connection, which the transport closes
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(answer.Response, answer.Error)
	})
}

// install lets raft judge the sender's term, passes it the snapshot unless this replica holds it,
// and checks raft's last index afterwards.
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
	if f.g.Closing() { // Close interrupts only an install that it sees here
		f.respond(rpc, raft.RPCResponse{Error: errs.ErrGroupClosed})
		return
	}
	alone := f.g.snapshotting.TryLock()
	answer, ok = f.ask(call, rpc.Reader)
	if alone {
		f.g.snapshotting.Unlock()
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

// reopen requests that the replica be opened again, and passes no call on until it is closed.
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
		return ^uint64(0) // treat it as wrong
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

// termAt returns the term of an entry, if the log has it or it is the newest snapshot's last.
func (f *rpcFilter) termAt(index uint64) (term uint64, known bool) {
	err := f.log.GetLog(index, &f.entry)
	term, f.entry = f.entry.Term, raft.Log{}
	if err == nil {
		return term, true
	}
	newest, term := f.g.snaps.Newest()
	return term, newest > 0 && newest == index
}

// boundCommit bounds a leader's commit index by the last entry that raft compares. The follower's
// entries after that may be another leader's.
func boundCommit(call *raft.AppendEntriesRequest) {
	call.LeaderCommitIndex = min(call.LeaderCommitIndex, call.PrevLogEntry+uint64(len(call.Entries)))
}

// skipApplied removes applied entries from an append that begins before the log. It also clears the
// previous entry, so that raft compares nothing before the append. If no entry is left, it makes
// the append a heartbeat.
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

// checkAppend stops the group if an append shows that the leader has another entry in place of one
// that is committed here.
//
// It cannot misfire. It reads the commit index before the term. So everything up to that index was
// committed in terms up to the one that it reads. A leader of that or a later term has all of
// these entries, with the same terms. An append of an earlier term, which may have arrived late,
// proves nothing, and raft refuses it. No entry up to the commit index is ever replaced, and
// compacted entries are not compared.
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

// checkSnapshot is checkAppend for a snapshot. All of a snapshot is committed.
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

// compare stops the group if an entry that is committed here has another term at the sender.
// senderTerm is the term that the sender leads.
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

// checkVote refuses a vote or pre-vote while this replica's own configuration lacks this replica,
// and to a candidate that was deleted. It reports whether the candidate is a voter of that
// configuration. If not, it replaces the candidate's id with the id of a voter.
//
// raft only compares that id with its configuration. It remembers its vote and its leader by Addr,
// which includes the candidate's own id (see EncodePeer).
//
// Only a voter that this replica knows may ask for votes although there is a leader, as in a
// handover. A removed replica may not, even if a late call told it to lead.
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
	leader, _ := f.g.raft.LeaderWithID() // before the state: a candidate that wins knows itself
	if f.g.raft.State() != raft.Candidate {
		return ""
	}
	return leader
}

// leads reports whether this replica leads a term. A leader that hears of a later term stops
// leading before it stores that term, but sends heartbeats until it has stored it. While its disk
// hangs or is full, those would keep followers from voting for another.
func (f *rpcFilter) leads(term uint64) bool {
	if f == nil {
		return true // a transport without a replica
	}
	r := f.raft.Load()
	return r != nil && r.State() == raft.Leader && r.CurrentTerm() == term
}

// inTerm reports whether this replica is in a term that it led, and can store a later one. A replica
// that waits for disk to store a later term is not.
func (f *rpcFilter) inTerm(term uint64) bool {
	if f == nil || f.leads(term) {
		return true
	}
	r, stop := f.raft.Load(), f.g.stop
	return r != nil && r.CurrentTerm() == term && !stop.Waits() && stop.Usable() == nil
}

// awaitCommit holds back an append to a replica without a vote until all its entries are
// committed. It returns an error once this replica no longer leads the append's term.
func (f *rpcFilter) awaitCommit(to raft.ServerID, call *raft.AppendEntriesRequest, closed *closedOnce) error {
	for f.leads(call.Term) {
		if f == nil || len(call.Entries) == 0 {
			return nil
		}
		r := f.raft.Load()
		commit := r.CommitIndex()
		// After reading the commit index: a later leader may commit other entries at these
		// indexes.
		if !f.leads(call.Term) {
			break
		}
		if !withheld(to, call.Entries, commit, r.GetConfiguration().Configuration().Servers) {
			return nil
		}
		if closed.within(withheldPause) {
			break
		}
	}
	return errNotLeading
}

// withheld reports whether the target has no vote by the leader's latest configuration and some
// entries are not committed. It also checks configurations among the entries, because raft sends
// one slightly before it becomes the latest. No commit waits for a withheld append: only voters of
// the latest configuration count.
func withheld(to raft.ServerID, entries []*raft.Log, commit uint64, servers []raft.Server) bool {
	if entries[len(entries)-1].Index <= commit {
		return false
	}
	return SuffrageOf(servers, to) != raft.Voter || slices.ContainsFunc(entries, func(e *raft.Log) bool {
		return e.Index > commit && e.Type == raft.LogConfiguration && SuffrageOf(raft.DecodeConfiguration(e.Data).Servers, to) != raft.Voter
	})
}

// checkTimeoutNow refuses an order to campaign at once unless it comes from the leader. The order
// has no term, and raft would obey a late one, even as a leader. A replica that may not campaign
// also refuses the order, because raft raises its term before it requests votes. So does a replica
// that could apply no entry as a leader.
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

// mayCampaign returns why raft must not request votes, or nil. raft checks that a follower has a
// vote only when the follower's timer fires. It does not check when it is told to lead, nor again
// while it is a candidate, which may get a configuration without its vote.
func (f *rpcFilter) mayCampaign() error {
	if f == nil {
		return nil // a transport without a replica
	}
	if f.barred.Load() {
		return errLastIndex
	}
	r := f.raft.Load()
	if r == nil || SuffrageOf(r.GetConfiguration().Configuration().Servers, f.g.ID()) != raft.Voter {
		return errNoVote
	}
	return nil
}
