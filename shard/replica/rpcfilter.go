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

	"github.com/countd/countd/shard/stream"
)

// rpcFilter filters the calls between the network and raft: raft's Consumer is rpcs, and run
// passes one call of a peer at a time to it, each after the answer to the one before. raft's
// main loop handles calls one at a time anyway, so this changes no order. It gives the checks
// below a guarantee that raft alone does not give: while a check runs, no other call changes
// the term, the log behind the commit index, or the applied state.
//
// raft has eleven gaps that peers, or bytes that arrive late, can lead it into:
//
//  1. raft compares only the term of a snapshot. One that is behind what is applied
//     rolls the state back and deletes the log, and with it entries that this replica
//     has acknowledged. So raft is never given a snapshot that this replica has already
//     (holds): its index is applied, or the log has its last entry, of the same term, and
//     so, by Raft's log matching, all before. The sender is told of success, which is
//     true of the log on disk, once raft has judged the sender's term by an empty append
//     in the snapshot's place. raft is given a snapshot only if the log has another
//     entry in its place, or ends before it: what raft deletes then is no more than what
//     contradicts the snapshot or is in it.
//  2. raft does not take back its last index when it deletes the log for a snapshot. If
//     the log was as long as the snapshot, raft would acknowledge, vote and be elected
//     on entries that are gone. Such a replica is closed and opened again, and no call
//     reaches raft any more. Nor can raft campaign: the transport sends no requests for
//     votes from before raft is given a snapshot until its last index was checked (see
//     mayCampaign); and one that needs nobody's vote holds all that is committed.
//  3. A snapshot of raft's own that ends while raft installs a later one takes its place
//     in raft's memory, which then has too low a last index. snapshotting is held
//     meanwhile; if it is taken already, the replica is opened again like in 2.
//  4. raft commits up to its own last entry if the leader's commit index is beyond that,
//     although it has compared only the entries up to the last one of the call. The
//     commit index is bounded by that entry (boundCommit), here for peers that send it
//     unbounded.
//  5. raft looks for the entry before those of a call in its log alone. If a snapshot
//     took that entry's place, raft refuses the call for ever, or, if the call begins at
//     entry 1, stores it in front of a gap. What is applied is the leader's too, by Raft's
//     leader completeness, so raft is given only what comes behind (skipApplied).
//  6. raft votes for any candidate while it has no configuration. A replica that has none
//     knows nothing of its group, and nobody counts on its vote: it gets one only once it
//     has applied a configuration that it is in. So it votes only then (checkVote).
//  7. raft votes only for voters of its own latest configuration. A voter that missed a
//     change of members and those that did not refuse each other then, and the group has no
//     leader although a majority lives. A vote must depend on term and log alone, so
//     checkVote names a candidate that raft would refuse by the id of a voter.
//  8. raft sends a replica that loses its vote, or has none, what is not committed. Such a
//     replica does not campaign, and if its log is the longest of a majority, it refuses
//     all others. So it is sent only what is committed (awaitCommit).
//  9. raft stays a candidate if it is sent a snapshot in its own term, and refuses the others
//     its vote because it knows a leader. An append makes it a follower first (install).
//  10. raft stays a candidate if it was told to lead and the winner of that term sends it an
//     append, and takes that one for its leader until it hears from it once more. If the winner
//     is lost, raft refuses the others for ever. So a candidate's leader is no reason to refuse
//     (candidatesLeader).
//  11. raft has a replica without a vote campaign if it is told to lead, by a call that was late.
//     As a leader it would add entries to its own log, and refuse shorter ones once it has a vote
//     again, although it has missed the change that gave it that vote. So it requests no votes
//     (mayCampaign).
//
// DESIGN.md proves that the group has one leader at most, and that it has one, with 7 to 11.
//
// A check of one call is one function, which handle calls; an error refuses the call.
type rpcFilter struct {
	g    *Replica
	log  raft.LogStore // as raft reads it
	rpcs chan raft.RPC // unbuffered, from run to raft
	// served is where appends come from that travel with those of other groups, nil for
	// nowhere; run closes it. answered has the answer to the one that run handles.
	served   *stream.Inbox
	answered chan raft.RPCResponse
	// answer is raft's to the call that it was given last.
	answer chan raft.RPCResponse
	entry  raft.Log // termAt's
	// barred is set from before raft is given a snapshot until its last index was found
	// to be right, and stays set if it is not.
	barred atomic.Bool
	// raft is set once it has started, for the transport, which raft calls before NewRaft returns.
	raft atomic.Pointer[raft.Raft]
}

// withheldPause is how often awaitCommit checks: a small part of what a commit takes.
const withheldPause = time.Millisecond

var (
	// errContradicted stops a group to which a leader sent another entry than is
	// committed.
	errContradicted = errors.New("two leaders have committed different entries")
	// errLastIndex is returned for requests for votes while raft's last index may be
	// wrong, and stops a group that nobody opens again.
	errLastIndex = errors.New("the replica must be opened again: raft's last index is not that of its log")
	// errNotInGroup is returned for a request for a vote that this replica has not got.
	errNotInGroup = errors.New("this replica is not in its own configuration")
	// errOutlived is returned for a request for a vote of a replica that was deleted.
	errOutlived = errors.New("the candidate's node has a later replica")
	// errNotLeading ends an append that was held back until its sender led no more.
	errNotLeading = errors.New("this replica leads no more")
	// errNoVote is returned for a campaign of a replica without a vote in its own configuration.
	errNoVote = errors.New("this replica has no vote in its own configuration")
	// errNotLeadersCall is returned for a call that only the leader makes.
	errNotLeadersCall = errors.New("the caller is not this replica's leader")
)

func newRPCFilter(g *Replica, log raft.LogStore) *rpcFilter {
	return &rpcFilter{g: g, log: log, rpcs: make(chan raft.RPC), answer: make(chan raft.RPCResponse, 1), answered: make(chan raft.RPCResponse, 1)}
}

// run passes calls on until the group is closed. The group's start starts it, shutdown
// waits for it.
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
	if err := f.g.stop.Usable(); err != nil { // of an interrupted restore, raft knows less than the disk
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

// ask hands a call to raft and returns its answer, or false once the group is closed:
// then its caller has no answer either, and its connection is closed.
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

// respond answers a call that raft was not given, once its body is read: the sender
// writes all of it before it reads the answer. Other calls go on meanwhile.
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

// install has raft judge the sender's term, gives it the snapshot unless this replica holds
// it, and checks what raft makes of it.
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

// reopen has the replica opened again, and passes nothing on until it is closed.
func (f *rpcFilter) reopen(call *raft.InstallSnapshotRequest) {
	g := f.g
	g.cfg.Logger.Warn("a snapshot replaced a log of the same length: the replica is opened again",
		"group", g.cfg.Group, "snapshot", call.LastLogIndex, "from", string(call.ID))
	g.Reopen(errLastIndex)
	<-g.done
}

// Reopen asks the owner to open the replica again, or stops the group for good, because of why, if
// nobody does.
func (g *Replica) Reopen(why error) {
	if g.cfg.Reopen != nil {
		g.cfg.Reopen()
	} else {
		_ = g.stop.Fail(fmt.Errorf("group %d: %w", g.cfg.Group, why))
	}
}

// lastLogIndex returns what raft takes for the index of the last entry in its log.
func (f *rpcFilter) lastLogIndex() uint64 {
	index, err := strconv.ParseUint(f.g.raft.Stats()["last_log_index"], 10, 64)
	if err != nil {
		return ^uint64(0) // not seen to be right
	}
	return index
}

// holds reports whether this replica has all that a snapshot has.
func (f *rpcFilter) holds(call *raft.InstallSnapshotRequest) bool {
	if call.LastLogIndex <= f.g.raft.AppliedIndex() {
		return true
	}
	term, known := f.termAt(call.LastLogIndex)
	return known && term == call.LastLogTerm
}

// termAt returns the term of an entry, if it is in the log or is the newest snapshot's
// last.
func (f *rpcFilter) termAt(index uint64) (term uint64, known bool) {
	err := f.log.GetLog(index, &f.entry)
	term, f.entry = f.entry.Term, raft.Log{}
	if err == nil {
		return term, true
	}
	newest, term := f.g.snaps.Newest()
	return term, newest > 0 && newest == index
}

// boundCommit bounds a leader's commit index by the last entry that raft compares: what
// a follower has behind that may be another leader's.
func boundCommit(call *raft.AppendEntriesRequest) {
	call.LeaderCommitIndex = min(call.LeaderCommitIndex, call.PrevLogEntry+uint64(len(call.Entries)))
}

// skipApplied takes the entries that are applied here out of an append that begins in
// front of the log. An append without a previous entry is one that raft compares
// nothing before; one of nothing at all is a heartbeat.
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

// checkAppend stops the group if an append shows that an entry which is committed here
// is another at its leader.
//
// It cannot misfire. The commit index is read before the term: all up to it was committed
// in terms up to the one that is read. An append of that or a later term is of a leader
// that has all of it, with the same terms; one of an earlier term, which may have
// arrived late, shows nothing, and raft refuses it. No entry up to the commit index is
// ever replaced, and one that was compacted away is not compared.
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

// checkSnapshot is checkAppend for a snapshot, all of which is committed.
func (f *rpcFilter) checkSnapshot(call *raft.InstallSnapshotRequest) error {
	committed := f.committed()
	if call.Term < f.g.raft.CurrentTerm() || call.LastLogIndex > committed {
		return nil
	}
	return f.compare(call.RPCHeader, call.Term, call.LastLogIndex, call.LastLogTerm)
}

// committed returns up to which index entries are known here to be committed.
func (f *rpcFilter) committed() uint64 {
	return max(f.g.raft.CommitIndex(), f.g.raft.AppliedIndex())
}

// compare stops the group if an entry that is committed here has another term at the
// sender, which leads a term.
func (f *rpcFilter) compare(from raft.RPCHeader, leads, index, theirs uint64) error {
	ours, known := f.termAt(index)
	if !known || ours == theirs {
		return nil
	}
	err := fmt.Errorf("group %d: %w: entry %d, which is committed here, is of term %d, and of term %d at %s (%s), which leads term %d",
		f.g.cfg.Group, errContradicted, index, ours, theirs, from.ID, from.Addr, leads)
	f.g.cfg.Logger.Error("the replicas of a group disagree on a committed entry: this one stops for good", "group", f.g.cfg.Group, "err", err)
	return f.g.stop.Fail(err)
}

// checkVote refuses a vote, or to say how it would vote, while this replica's own
// configuration does not have it, and to a replica that was deleted. It reports whether the
// candidate is a voter of that configuration, and gives one that is not the id of a voter.
//
// raft compares that id with its configuration and uses it for nothing else. By Addr it
// remembers whom it voted for and knows its leader, and the candidate's own id is in that
// (see EncodePeer).
//
// Only a voter that this replica knows may ask for votes although there is a leader, as one
// does that the leader hands over to. A removed one that is told late to lead has no such right.
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

// candidatesLeader returns the address of the leader that raft knows while it is a candidate,
// "" if it is none or knows none.
func (f *rpcFilter) candidatesLeader() raft.ServerAddress {
	leader, _ := f.g.raft.LeaderWithID() // before the state: a candidate that wins knows itself
	if f.g.raft.State() != raft.Candidate {
		return ""
	}
	return leader
}

// leads reports whether this replica leads a term. A leader that hears of a later term leads no more
// from before it stores that term. Its heartbeats go on until it has: for as long as its disk hangs or
// is full, they would keep followers from voting for another.
func (f *rpcFilter) leads(term uint64) bool {
	if f == nil {
		return true // a transport without a replica
	}
	r := f.raft.Load()
	return r != nil && r.State() == raft.Leader && r.CurrentTerm() == term
}

// awaitCommit holds an append to a replica without a vote back until all of it is committed.
// It returns an error once this replica does not lead the term of the append.
func (f *rpcFilter) awaitCommit(to raft.ServerID, call *raft.AppendEntriesRequest, closed *closedOnce) error {
	for f.leads(call.Term) {
		if f == nil || len(call.Entries) == 0 {
			return nil
		}
		r := f.raft.Load()
		commit := r.CommitIndex()
		// After that: a later leader may commit other entries at these indexes.
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

// withheld reports whether some entries are not committed, and the replica that they are for
// has no vote by the leader's latest configuration. raft sends the entry of a configuration a
// moment before that is its latest. No commit waits for an append that is withheld: only voters
// of the latest configuration count.
func withheld(to raft.ServerID, entries []*raft.Log, commit uint64, servers []raft.Server) bool {
	if entries[len(entries)-1].Index <= commit {
		return false
	}
	return SuffrageOf(servers, to) != raft.Voter || slices.ContainsFunc(entries, func(e *raft.Log) bool {
		return e.Index > commit && e.Type == raft.LogConfiguration && SuffrageOf(raft.DecodeConfiguration(e.Data).Servers, to) != raft.Voter
	})
}

// checkTimeoutNow refuses a call to stand for election at once unless it is the leader's:
// it has no term, and raft would obey one that comes late, a leader too. A replica that may not
// campaign refuses it as well, because raft raises its term before it requests votes.
func (f *rpcFilter) checkTimeoutNow(call *raft.TimeoutNowRequest) error {
	if err := f.mayCampaign(); err != nil {
		return err
	}
	if _, leader := f.g.raft.LeaderWithID(); f.g.raft.State() != raft.Follower || string(leader) != string(call.ID) {
		return fmt.Errorf("%w: it is %s, not %s", errNotLeadersCall, leader, call.ID)
	}
	return nil
}

// mayCampaign returns why raft may not request votes, nil if it may. raft checks that a follower
// has a vote only when the follower's clock runs out: not if it is told to lead, and not again while
// it is a candidate, which may be sent a configuration without its vote.
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
