package shard

import (
	"cmp"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/replica"
)

// This file simulates Raft. A replica is a plain value that method calls change. The file follows
// hashicorp/raft v1.8.0 and uses the names of its functions. Where the library does less than the
// theory of Raft requires, this file does the same:
//
//   - A replica with an empty configuration grants votes and pre-votes to anybody. Any other
//     replica grants them only to voters of its configuration.
//   - The newest configuration of the log is in force, committed or not. When one is appended, the
//     one before it counts as committed, also at a restart.
//   - InstallSnapshot does not compare the snapshot's index with the log. It deletes the whole log
//     (the store is a raft.MonotonicLogStore), and keeps the last entry's index and term in memory.
//   - A candidate that receives a snapshot in its own term learns the leader, but stays a
//     candidate. The same holds for a candidate that campaigns because of TimeoutNow and receives
//     an append.
//   - If a vote request of a term is repeated, the voter compares only the candidate's address with
//     that of its vote. It does not compare the logs again.
//   - A candidate needs as many votes as its configuration required when it became a candidate.
//   - The replication to a removed member continues for a moment. If a member with the same id is
//     added meanwhile, the old answers count for it.
//   - A leader that starts a handover skips pre-votes, and so does one that receives TimeoutNow at
//     any time.
//   - A leader sends heartbeats of its own term while it waits for its disk to store a later term.
//
// The term and the vote are durable, one record each, as Votes writes them. The log and the newest
// snapshot are durable too. The commit index, the applied index and the leader are not.

// simEntry is one entry of a log. Two entries are the same only if their idents are.
type simEntry struct {
	term  uint64
	ident uint64
	conf  []raft.Server // configuration, in a configuration entry
}

// simSnap is a snapshot. ident is the ident of the entry at index.
type simSnap struct {
	index, term, ident uint64
	conf               []raft.Server
	confIndex          uint64
}

// simDisk is the part of a replica that survives a crash.
type simDisk struct {
	life     uint64 // number of this lifetime; unique in a world
	node     int
	number   int // number in the replica's Raft id
	id       raft.ServerID
	term     uint64
	voteTerm uint64
	voteFor  string
	snap     simSnap
	first    uint64 // the index of log[0]
	log      []simEntry
}

func (d *simDisk) entry(index uint64) *simEntry {
	if len(d.log) == 0 || index < d.first || index >= d.first+uint64(len(d.log)) {
		return nil
	}
	return &d.log[index-d.first]
}

func (d *simDisk) lastIndex() uint64 {
	if len(d.log) == 0 {
		return 0
	}
	return d.first + uint64(len(d.log)) - 1
}

type simState uint8

const (
	simFollower simState = iota
	simCandidate
	simLeader
)

// simRaft is a running replica.
type simRaft struct {
	w    *simWorld
	disk *simDisk

	state            simState
	leader           string // address, "" for none
	leaderID         raft.ServerID
	lastLog, lastT   uint64 // raftState's lastLogIndex and lastLogTerm
	commit, applied  uint64
	latest, accepted []raft.Server // raft's configurations.latest and .committed
	latestAt, accAt  uint64
	fromTransfer     bool
	waits            bool          // the main loop waits until a full disk can store its term, its vote or the configuration in unstored
	unstored         []raft.Server // the configuration that a leader's full disk could not store yet
	receives         *simReceipt   // the snapshot that the main loop reads; nil for none
	former           *simLead      // the last leadership, whose replication continues while the main loop waits; nil for none

	campaign  uint64 // number of the candidacy, by which late answers are recognised
	preVoting bool
	campTerm  uint64
	needed    int
	granted   int
	voters    []uint64 // the lifetimes that granted the vote

	lead *simLead
}

// simLead is leaderState.
type simLead struct {
	term       uint64
	start      uint64
	commit     uint64
	match      []simMatch
	repl       []*simRepl
	departing  []*simRepl
	barrier    uint64
	ready      bool
	stepDown   bool
	transferTo raft.ServerID // "" for no transfer in progress
	change     *simChange    // waits in configurationChangeCh
	silent     int           // ticks without a majority, after the faults have stopped
}

type simMatch struct {
	id    raft.ServerID
	index uint64
}

// simRepl is followerReplication. It has at most one call in flight.
type simRepl struct {
	lead    *simLead
	id      raft.ServerID
	next    uint64
	upTo    uint64 // for a removed member: the last entry to send; 0 for others
	calling uint64 // the call in flight; 0 for none
	heard   bool
}

// simChange is configurationChangeRequest.
type simChange struct {
	command raft.ConfigurationChangeCommand
	id      raft.ServerID
	addr    raft.ServerAddress
}

func simQuorum(conf []raft.Server) int {
	voters := 0
	for i := range conf {
		if conf[i].Suffrage == raft.Voter {
			voters++
		}
	}
	return voters/2 + 1
}

func simHasVote(conf []raft.Server, id raft.ServerID) bool {
	return replica.SuffrageOf(conf, id) == raft.Voter
}

// startRaft stands for replica.bootstrap, storage.Recover and raft.NewRaft.
func startRaft(w *simWorld, d *simDisk, initial []raft.Server) *simRaft {
	r := &simRaft{w: w, disk: d}
	r.dropSuperseded()
	if len(initial) > 0 && len(d.log) == 0 && d.snap.index == 0 && d.term <= 1 {
		d.term = 1
		d.first = 1
		d.log = []simEntry{{term: 1, ident: 1, conf: initial}} // all replicas write the same entry
	}
	r.lastLog = d.lastIndex()
	if e := d.entry(r.lastLog); e != nil {
		r.lastT = e.term
	}
	if d.snap.index > 0 {
		if len(d.log) > 0 && d.first > d.snap.index+1 {
			w.fail(simDamage, "life %d of %s: the log begins at %d, its snapshot ends at %d", d.life, d.id, d.first, d.snap.index)
		}
		r.applied = d.snap.index
		w.restored(r, d.snap)
		r.latest, r.latestAt = d.snap.conf, d.snap.confIndex
		r.accepted, r.accAt = r.latest, r.latestAt
	}
	for i := r.applied + 1; i <= r.lastLog; i++ {
		if e := d.entry(i); e == nil {
			w.fail(simDamage, "life %d of %s: entry %d is missing", d.life, d.id, i)
			break
		} else if e.conf != nil {
			r.sawConfiguration(e, i)
		}
	}
	return r
}

// dropSuperseded is the model of the function with that name in package storage.
func (r *simRaft) dropSuperseded() {
	d := r.disk
	if d.snap.index == 0 || len(d.log) == 0 {
		return
	}
	if last := d.lastIndex(); last >= d.snap.index {
		if d.first > d.snap.index {
			return
		}
		if d.entry(d.snap.index).term == d.snap.term {
			return
		}
	}
	d.log = nil
}

func (r *simRaft) sawConfiguration(e *simEntry, index uint64) {
	r.accepted, r.accAt = r.latest, r.latestAt
	r.latest, r.latestAt = e.conf, index
}

func (r *simRaft) lastEntry() (index, term uint64) {
	if r.lastLog >= r.disk.snap.index {
		return r.lastLog, r.lastT
	}
	return r.disk.snap.index, r.disk.snap.term
}

func (r *simRaft) setState(s simState) {
	r.leader, r.leaderID = "", ""
	if r.state == simLeader && s != simLeader {
		r.former, r.lead = r.lead, nil
	}
	if s != simCandidate {
		r.campaign++
		r.fromTransfer = false
	}
	r.state = s
}

// setTerm stores a term. It returns false if the main loop must wait for the disk. The caller must
// then drop its message.
func (r *simRaft) setTerm(term uint64) bool {
	if r.mustWait() {
		return false
	}
	r.disk.term = term
	return true
}

func (r *simRaft) full() bool { return r.w.nodes[r.disk.node].full }

func (r *simRaft) mustWait() bool {
	r.waits = r.full()
	return r.waits
}

func (r *simRaft) rules() *simRules { return &r.w.rules }

func (r *simRaft) is(id raft.ServerID) bool { return r.disk.id == id }

// heartbeatTimeout is the branch of runFollower's timer for a follower that has not heard of a
// leader.
func (r *simRaft) heartbeatTimeout() {
	r.leader, r.leaderID = "", ""
	if r.latestAt == 0 || !simHasVote(r.latest, r.disk.id) {
		return
	}
	r.setState(simCandidate)
	r.runCandidate()
}

// mayCampaign is rpcFilter.mayCampaign.
func (r *simRaft) mayCampaign() bool {
	return !r.rules().filter || simHasVote(r.latest, r.disk.id)
}

// runCandidate begins a candidacy.
func (r *simRaft) runCandidate() {
	r.campaign++
	r.campTerm = r.disk.term + 1
	r.needed = simQuorum(r.latest)
	r.granted, r.voters = 0, r.voters[:0]
	if !r.mayCampaign() {
		return
	}
	if r.fromTransfer {
		r.electSelf(true)
		return
	}
	r.preVoting = true
	lastIndex, lastTerm := r.lastEntry()
	for _, s := range r.latest {
		if s.Suffrage != raft.Voter {
			continue
		}
		if r.is(s.ID) {
			r.granted++
			continue
		}
		r.w.send(r, s, simMsg{kind: simPreVote, term: r.campTerm, index: lastIndex, indexTerm: lastTerm, call: r.campaign})
	}
	if r.granted >= r.needed {
		r.electSelf(false)
	}
}

func (r *simRaft) electSelf(transfer bool) {
	r.preVoting = false
	r.granted, r.voters = 0, r.voters[:0]
	if !r.setTerm(r.disk.term + 1) {
		return
	}
	lastIndex, lastTerm := r.lastEntry()
	for _, s := range r.latest {
		if s.Suffrage != raft.Voter {
			continue
		}
		if r.is(s.ID) {
			if r.w.tears(r) { // some requests have been sent already
				return
			}
			r.disk.voteTerm, r.disk.voteFor = r.disk.term, r.w.addrOf(r.disk)
			r.granted++
			r.voters = append(r.voters, r.disk.life)
			continue
		}
		r.w.send(r, s, simMsg{kind: simVote, term: r.disk.term, index: lastIndex, indexTerm: lastTerm, call: r.campaign, transfer: transfer})
	}
	if r.granted >= r.needed {
		r.becomeLeader()
	}
}

// checkVote is rpcFilter.checkVote. judged reports whether raft receives the request, and voter
// whether the filter presents the candidate to raft as a voter. Raft refuses a candidate that is no
// voter.
func (r *simRaft) checkVote(m *simMsg) (judged, voter bool) {
	rules := r.rules()
	if rules.freeCandidates && r.state == simCandidate {
		r.leader, r.leaderID = "", ""
	}
	if rules.refuseUnnamed && !replica.Contains(r.latest, r.disk.id) {
		return false, false
	}
	if len(r.latest) == 0 || simHasVote(r.latest, m.fromID) {
		return true, true
	}
	if rules.votesByLog {
		m.transfer = false
		return !replica.Outlived(r.latest, m.fromID), true
	}
	return replica.Contains(r.latest, m.fromID), false
}

// requestPreVote returns the term of the answer, and whether the pre-vote is granted.
func (r *simRaft) requestPreVote(m *simMsg) (uint64, bool) {
	term := r.disk.term
	judged, voter := r.checkVote(m)
	if !judged {
		return term, false
	}
	if r.leader != "" && r.leader != m.fromAddr || m.term < term {
		return term, false
	}
	if m.term > term {
		term = m.term
	}
	if !voter {
		return term, false
	}
	lastIndex, lastTerm := r.lastEntry()
	return term, lastTerm < m.indexTerm || lastTerm == m.indexTerm && lastIndex <= m.index
}

func (r *simRaft) requestVote(m *simMsg) (uint64, bool) {
	judged, voter := r.checkVote(m)
	if !judged {
		return r.disk.term, false
	}
	if r.leader != "" && r.leader != m.fromAddr && !m.transfer || m.term < r.disk.term {
		return r.disk.term, false
	}
	if m.term > r.disk.term {
		r.setState(simFollower)
		if !r.setTerm(m.term) || r.w.tears(r) {
			return r.disk.term, false
		}
	}
	if !voter {
		return r.disk.term, false
	}
	if r.disk.voteTerm == m.term && r.disk.voteFor != "" {
		return r.disk.term, r.disk.voteFor == m.fromAddr
	}
	lastIndex, lastTerm := r.lastEntry()
	if lastTerm > m.indexTerm || lastTerm == m.indexTerm && lastIndex > m.index {
		return r.disk.term, false
	}
	if r.mustWait() {
		return r.disk.term, false
	}
	r.disk.voteTerm, r.disk.voteFor = m.term, m.fromAddr
	return r.disk.term, true
}

func (r *simRaft) preVoteAnswered(m *simMsg) {
	if r.state != simCandidate || m.call != r.campaign || !r.preVoting {
		return
	}
	if m.term > r.campTerm {
		r.setState(simFollower)
		r.setTerm(m.term)
		return
	}
	if m.ok {
		r.granted++
	}
	if r.granted >= r.needed {
		r.electSelf(false)
	}
}

func (r *simRaft) voteAnswered(m *simMsg) {
	if r.state != simCandidate || m.call != r.campaign || r.preVoting {
		return
	}
	if m.term > r.disk.term {
		r.setState(simFollower)
		r.setTerm(m.term)
		return
	}
	if m.ok {
		r.granted++
		r.voters = append(r.voters, m.life)
	}
	if r.granted >= r.needed {
		r.becomeLeader()
	}
}

// becomeLeader stands for setupLeaderState and the beginning of runLeader, with the barrier that
// confirm in replica/lead.go proposes.
func (r *simRaft) becomeLeader() {
	r.setState(simLeader)
	r.campaign++
	r.leader, r.leaderID = r.w.addrOf(r.disk), r.disk.id
	last, _ := r.lastEntry()
	r.lead = &simLead{term: r.disk.term, start: last + 1}
	r.setCommitment()
	r.w.elected(r)
	r.startStop()
	r.dispatch(simEntry{})
	if lead := r.lead; lead != nil { // the first dispatch may have ended the leadership
		lead.barrier = r.dispatch(simEntry{})
		r.applyUpTo(r.commit)
	}
}

// setCommitment is commitment.setConfiguration without its recalculate.
func (r *simRaft) setCommitment() {
	old := r.lead.match
	r.lead.match = nil
	for _, s := range r.latest {
		if s.Suffrage == raft.Voter {
			index := uint64(0)
			for _, m := range old {
				if m.id == s.ID {
					index = m.index
				}
			}
			r.lead.match = append(r.lead.match, simMatch{s.ID, index})
		}
	}
}

func (r *simRaft) startStop() {
	last, _ := r.lastEntry()
	last = max(last, r.disk.snap.index)
	for _, s := range r.latest {
		if !r.is(s.ID) && !slices.ContainsFunc(r.lead.repl, func(f *simRepl) bool { return f.id == s.ID }) {
			r.lead.repl = append(r.lead.repl, &simRepl{lead: r.lead, id: s.ID, next: last + 1})
		}
	}
	r.lead.repl = slices.DeleteFunc(r.lead.repl, func(f *simRepl) bool {
		gone := !replica.Contains(r.latest, f.id)
		if gone {
			f.upTo = last
			r.lead.departing = append(r.lead.departing, f)
		}
		return gone
	})
}

// dispatch appends an entry as leader and returns its index. A leader whose disk is full steps
// down.
func (r *simRaft) dispatch(e simEntry) uint64 {
	d := r.disk
	if r.full() {
		r.setState(simFollower)
		return 0
	}
	index := max(r.lastLog, d.snap.index) + 1
	e.term, e.ident = d.term, r.w.ident()
	r.store(index, e)
	r.lastLog, r.lastT = index, e.term
	if e.conf != nil {
		r.latest, r.latestAt = e.conf, index
	}
	lead := r.lead
	r.match(lead, d.id, index)
	return index
}

// store appends an entry, like StoreLogs.
func (r *simRaft) store(index uint64, e simEntry) {
	d := r.disk
	if len(d.log) == 0 {
		d.first = index
	} else if index != d.lastIndex()+1 {
		r.w.fail(simDamage, "life %d of %s stores entry %d behind %d", d.life, d.id, index, d.lastIndex())
		return
	}
	d.log = append(d.log, e)
}

// match stands for commitment.match, recalculate and the commitCh branch of leaderLoop.
func (r *simRaft) match(lead *simLead, id raft.ServerID, index uint64) {
	for i := range lead.match {
		if m := &lead.match[i]; m.id == id && index > m.index {
			m.index = index
			r.recalculate(lead)
		}
	}
}

func (r *simRaft) recalculate(lead *simLead) {
	if len(lead.match) == 0 {
		return
	}
	var room [8]uint64
	matched := room[:0]
	for _, m := range lead.match {
		matched = append(matched, m.index)
	}
	slices.Sort(matched)
	quorum := matched[(len(matched)-1)/2]
	if quorum <= lead.commit || quorum < lead.start || r.lead != lead {
		return
	}
	lead.commit = quorum
	was := r.commit
	r.commit = quorum
	if r.latestAt > was && r.latestAt <= quorum {
		r.accepted, r.accAt = r.latest, r.latestAt
		lead.stepDown = lead.stepDown || !simHasVote(r.accepted, r.disk.id)
	}
	r.w.committed(r)
	r.applyUpTo(quorum)
	if lead.stepDown {
		r.setState(simFollower)
	}
}

// applyUpTo is processLogs.
func (r *simRaft) applyUpTo(index uint64) {
	for r.applied < index {
		e := r.disk.entry(r.applied + 1)
		if e == nil {
			r.w.fail(simDamage, "life %d of %s has no entry %d to apply", r.disk.life, r.disk.id, r.applied+1)
			return
		}
		r.applied++
		r.w.appliedEntry(r, r.applied, e)
	}
	if l := r.lead; l != nil && l.barrier > 0 && r.applied >= l.barrier {
		l.ready = true
	}
}

func (r *simRaft) ready() bool {
	return r.state == simLeader && r.lead.ready && r.lead.term == r.disk.term
}

// committedFor is Replica.CommittedIndex.
func (r *simRaft) committedFor() uint64 {
	if r.commit > r.lead.barrier {
		return r.commit
	}
	return r.applied
}

// changeMembers is the configurationChangeChIfStable branch of leaderLoop.
func (r *simRaft) changeMembers() {
	l := r.lead
	if l.change == nil || l.transferTo != "" || r.latestAt != r.accAt || r.commit < l.start {
		return
	}
	conf := nextSimConfiguration(r.latest, *l.change)
	l.change = nil
	switch {
	case conf == nil:
	case !r.full():
		r.configure(conf)
	case r.rules().notLate:
		r.w.note("%s has no room for a configuration and is opened again", r.disk.id)
		r.w.stats.unstored++
		r.w.open(&r.w.nodes[r.disk.node], nil)
	default:
		r.waits, r.unstored = true, conf
	}
}

// configure is appendConfigurationEntry.
func (r *simRaft) configure(conf []raft.Server) {
	r.w.note("%s is the configuration of %s in term %d", simConf(conf), r.disk.id, r.disk.term)
	lead := r.lead
	r.dispatch(simEntry{conf: conf})
	if r.lead != lead {
		return
	}
	r.setCommitment()
	r.recalculate(lead)
	if r.lead == lead {
		r.startStop()
	}
}

// nextSimConfiguration stands for nextConfiguration and checkConfiguration. It returns nil for a
// refused change.
func nextSimConfiguration(current []raft.Server, c simChange) []raft.Server {
	next := slices.Clone(current)
	at := slices.IndexFunc(next, func(s raft.Server) bool { return s.ID == c.id })
	switch c.command {
	case raft.AddVoter:
		if at < 0 {
			next = append(next, raft.Server{Suffrage: raft.Voter, ID: c.id, Address: c.addr})
		} else {
			next[at].Suffrage, next[at].Address = raft.Voter, c.addr
		}
	case raft.AddNonvoter:
		if at < 0 {
			next = append(next, raft.Server{Suffrage: raft.Nonvoter, ID: c.id, Address: c.addr})
		} else {
			next[at].Address = c.addr
		}
	case raft.DemoteVoter:
		if at >= 0 {
			next[at].Suffrage = raft.Nonvoter
		}
	case raft.RemoveServer:
		if at >= 0 {
			next = slices.Delete(next, at, at+1)
		}
	}
	voters := 0
	for i, s := range next {
		if s.Suffrage == raft.Voter {
			voters++
		}
		if slices.ContainsFunc(next[:i], func(o raft.Server) bool { return o.ID == s.ID || o.Address == s.Address }) {
			return nil
		}
	}
	if voters == 0 {
		return nil
	}
	return next
}

// replicate is the part of replicateTo from START on. It sends the entries that a member lacks,
// except those that rpcFilter withholds.
func (r *simRaft) replicate(f *simRepl, s raft.Server) {
	upTo := max(r.lastLog, r.disk.snap.index)
	if r.rules().withholds && !simHasVote(r.latest, f.id) {
		upTo = r.commit
	}
	if f.upTo > 0 {
		upTo = min(upTo, f.upTo)
	}
	m := simMsg{kind: simAppend, term: r.lead.term, commit: r.commit, repl: f}
	switch {
	case f.next == 1:
	case f.next-1 == r.disk.snap.index:
		m.index, m.indexTerm = r.disk.snap.index, r.disk.snap.term
	default:
		e := r.disk.entry(f.next - 1)
		if e == nil {
			r.sendSnapshot(f, s)
			return
		}
		m.index, m.indexTerm = f.next-1, e.term
	}
	m.first = f.next
	for i := f.next; i <= min(upTo, f.next+simEntriesMax-1); i++ {
		e := r.disk.entry(i)
		if e == nil {
			r.sendSnapshot(f, s)
			return
		}
		m.entries = append(m.entries, *e)
	}
	f.calling = r.w.nextCall()
	m.call = f.calling
	r.w.send(r, s, m)
}

func (r *simRaft) sendSnapshot(f *simRepl, s raft.Server) {
	if r.disk.snap.index == 0 {
		return
	}
	f.calling = r.w.nextCall()
	r.w.send(r, s, simMsg{kind: simInstall, term: r.lead.term, snap: r.disk.snap, repl: f, call: f.calling})
}

// appendEntries returns Success and LastLog of the answer.
func (r *simRaft) appendEntries(m *simMsg) (ok bool, lastLog uint64) {
	d := r.disk
	lastLog = max(r.lastLog, d.snap.index)
	if r.rules().filter {
		r.filterAppend(m)
	}
	if m.term < d.term {
		return false, lastLog
	}
	if m.term > d.term || r.state != simFollower && !r.fromTransfer {
		r.setState(simFollower)
		if !r.setTerm(m.term) {
			return false, lastLog
		}
	}
	r.leader, r.leaderID = m.fromAddr, m.fromID
	if m.index > 0 {
		lastIndex, prevTerm := r.lastEntry()
		if m.index != lastIndex {
			e := d.entry(m.index)
			if e == nil {
				return false, lastLog
			}
			prevTerm = e.term
		}
		if prevTerm != m.indexTerm {
			return false, lastLog
		}
	}
	if len(m.entries) > 0 && r.full() {
		return false, lastLog
	}
	for i := range m.entries {
		index := m.first + uint64(i)
		if index <= r.lastLog {
			have := d.entry(index)
			if have == nil {
				return false, lastLog
			}
			if have.term == m.entries[i].term {
				continue
			}
			if index <= r.applied {
				r.w.fail(simDiverged, "life %d of %s cuts its log at %d, which it has applied", d.life, d.id, index)
			}
			d.log = d.log[: index-d.first : index-d.first]
			if r.w.tears(r) {
				return false, lastLog
			}
			if index <= r.latestAt {
				r.latest, r.latestAt = r.accepted, r.accAt
			}
		}
		for j := i; j < len(m.entries); j++ {
			e := m.entries[j]
			index := m.first + uint64(j)
			r.store(index, e)
			if e.conf != nil {
				r.sawConfiguration(&e, index)
			}
			r.lastLog, r.lastT = index, e.term
		}
		break
	}
	if m.commit > r.commit {
		index := min(m.commit, max(r.lastLog, d.snap.index))
		r.commit = index
		if r.latestAt <= index {
			r.accepted, r.accAt = r.latest, r.latestAt
		}
		r.applyUpTo(index)
	}
	return true, lastLog
}

// filterAppend stands for boundCommit and skipApplied of rpcFilter.
func (r *simRaft) filterAppend(m *simMsg) {
	m.commit = min(m.commit, m.index+uint64(len(m.entries)))
	heartbeat := m.index == 0 && len(m.entries) == 0
	if heartbeat || m.index > r.applied || m.index == max(r.lastLog, r.disk.snap.index) || r.disk.entry(max(m.index, 1)) != nil {
		return
	}
	for len(m.entries) > 0 && m.first <= r.applied {
		m.entries = m.entries[1:]
		m.first++
	}
	m.index, m.indexTerm = 0, 0
	if len(m.entries) == 0 {
		m.commit = 0
	}
}

// installSnapshot includes rpcFilter.install. ok reports whether it succeeded, and reopen whether
// the replica must be opened again.
func (r *simRaft) installSnapshot(m *simMsg) (ok, reopen bool) {
	d := r.disk
	filter := r.rules().filter
	if filter {
		if ok := r.hears(m); !ok || r.holds(&m.snap) {
			return ok, false
		}
	}
	if m.term < d.term || r.full() {
		return false, false
	}
	if m.term > d.term {
		r.setState(simFollower)
		r.setTerm(m.term)
	}
	r.leader, r.leaderID = m.fromAddr, m.fromID
	d.snap = m.snap
	if r.w.tears(r) { // crash before the log is deleted
		return false, false
	}
	r.applied = m.snap.index
	r.w.restored(r, m.snap)
	r.latest, r.latestAt = m.snap.conf, m.snap.confIndex
	r.accepted, r.accAt = r.latest, r.latestAt
	d.log = nil
	return true, filter && r.lastLog >= m.snap.index
}

// hears is the empty append that rpcFilter passes to raft before a snapshot. It reports whether
// raft accepts the sender as the leader.
func (r *simRaft) hears(m *simMsg) bool {
	ok, _ := r.appendEntries(&simMsg{term: m.term, fromID: m.fromID, fromAddr: m.fromAddr})
	return ok
}

// holds is rpcFilter.holds.
func (r *simRaft) holds(s *simSnap) bool {
	e := r.disk.entry(s.index)
	return r.rules().filter && (s.index <= r.applied || e != nil && e.term == s.term)
}

// takeSnapshot is raft's function. It leaves at least the newest n entries in the log.
func (r *simRaft) takeSnapshot(n uint64) {
	d := r.disk
	if r.full() || r.receives != nil || r.applied <= d.snap.index || r.applied < r.accAt {
		return
	}
	e := d.entry(r.applied)
	if e == nil {
		return
	}
	d.snap = simSnap{index: r.applied, term: e.term, ident: e.ident, conf: r.accepted, confIndex: r.accAt}
	if r.lastLog <= n || len(d.log) == 0 {
		return
	}
	if cut := min(d.snap.index, r.lastLog-n); cut >= d.first {
		d.log = slices.Clone(d.log[cut-d.first+1:])
		d.first = cut + 1
	}
}

// answered processes a follower's answer to a call of this leader. It reports whether the leader
// still leads and still waits for the answer.
func (r *simRaft) answered(m *simMsg) bool {
	f := m.repl
	if r.lead == nil || f.lead != r.lead || f.calling != m.call {
		return false
	}
	f.calling = 0
	if m.term > r.lead.term {
		r.setState(simFollower) // like handleStaleTerm, which does not store the term: a later call brings it
		return false
	}
	f.heard = true
	return true
}

func (r *simRaft) appendAnswered(m *simMsg) {
	f := m.repl
	switch {
	case !r.answered(m):
	case !m.ok:
		f.next = max(min(f.next-1, m.lastLog+1), 1)
	case m.index > 0:
		f.next = m.index + 1
		r.match(r.lead, f.id, m.index)
	}
}

func (r *simRaft) installAnswered(m *simMsg) {
	if f := m.repl; r.answered(m) && m.ok {
		f.next = m.index + 1
		r.match(r.lead, f.id, m.index)
	}
}

// timeoutNow is raft's function, which compares no term, after rpcFilter.checkTimeoutNow.
func (r *simRaft) timeoutNow(m *simMsg) {
	if r.rules().filter && (r.state != simFollower || r.leaderID != m.fromID) || !r.mayCampaign() {
		return
	}
	r.w.note("%s is told to lead by %s", r.disk.id, m.fromID)
	r.setState(simCandidate)
	r.fromTransfer = true
	r.runCandidate()
}

func simConf(conf []raft.Server) string {
	conf = slices.Clone(conf)
	slices.SortFunc(conf, func(a, b raft.Server) int { return cmp.Compare(a.ID, b.ID) })
	out := "{"
	for i, s := range conf {
		if i > 0 {
			out += " "
		}
		out += string(s.ID)
		if s.Suffrage != raft.Voter {
			out += "?"
		}
	}
	return out + "}"
}
