package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// The files sim*_test.go simulate a cluster: nodes with replicas of one group, the catalog that
// places the group, the calls between them, and faults. A seed determines everything that happens.
// simraft_test.go models hashicorp/raft. simnode_test.go has what a node does with its replica, and
// simlead_test.go what a leader does with its group. simrun_test.go has the events and the recovery
// at the end, and sim_test.go the tests.
//
// The simulation calls this code of the product: raftfsm's catalog commands, Number, Retired,
// MayHold; NextStep with what it calls, Wanted, InitialMembers, MemberID, Displaced, Contains,
// SuffrageOf, TwoSuffice. It has stand-ins for code that waits for disks, raft or the network:
//
//	simWorld.follow       Membership.ToHold, replicas.openReplica, Dirs.MayBegin
//	simWorld.startDrop    replicas.dropIfRemoved, replicas.dropReplica, Membership.WasRemoved
//	simWorld.serveMember  Membership.ServeGone
//	simWorld.reopen       a repair: replicas.fetchSnapshot, Snapshotter.Receive, replicas.reopen
//	simWorld.reconcile    Membership.Reconcile, catalogIsBehind
//	simWorld.behind       Membership.behind, Progress
//	simWorld.numbers      Membership.ReconcileNumbers, provedGone
//	simWorld.prove        Prover.ProveTerm, Prover.agreeing
//	simWorld.standing     Prover.answerProbe, Replica.IndexWith
//	simWorld.receive      leaderStream
//	simRaft.checkVote, filterAppend, installSnapshot, timeoutNow, mayCampaign    rpcFilter
//
// The simulation assumes that the catalog's own group is linearizable. The catalog is a list of
// views, and each node knows one of them. That view may be old, and after a restart even older.
// Commands reach the catalog late.

const (
	simGroup      = 1
	simNodesMax   = 9
	simEntriesMax = 3   // in one call
	simBagMax     = 160 // messages in flight
)

// simRules are the rules of a product. TestSimulatedWithout switches them off one by one.
type simRules struct {
	// numbers: the catalog numbers replicas, and their Raft ids contain the number.
	numbers bool
	// named: a call names the replica that must receive it (muxLayer).
	named bool
	// refuseUnnamed: a replica that is not in its own configuration votes for nobody.
	refuseUnnamed bool
	// probesNamed: a replica answers a probe only if its configuration contains both replicas.
	probesNamed bool
	// deleteAsks: a node deletes a retired replica only after the leader confirms that it is no
	// member.
	deleteAsks bool
	// asksAll: before the deletion, the node asks all nodes, not only those of the target.
	asksAll bool
	// retireProves: a leader proves its leadership before it retires a number.
	retireProves bool
	// neverTwice: a node remembers the numbers of deleted replicas (Dirs).
	neverTwice bool
	// inForce: only a member that has applied the configuration in force counts when
	// members change.
	inForce bool
	// initialBegins: a first voter may begin until it is retired, even if it has left the target.
	initialBegins bool
	// mindsNumbers: a leader whose catalog is older than its members changes none of them.
	mindsNumbers bool
	// votesByLog: a vote depends on the candidate's term and log, not on the voter's configuration.
	votesByLog bool
	// freeCandidates: a candidate votes for others although it knows a leader.
	freeCandidates bool
	// withholds: a leader sends only committed entries to a replica without a vote.
	withholds bool
	// leadersAlone: a replica sends no message of a term that it no longer leads.
	leadersAlone bool
	// notLate: a configuration that a leader cannot store at once is never stored.
	notLate bool
	// sendsRest: a leader continues to send a snapshot after it has lost its lease or was elected
	// again.
	sendsRest bool
	// filter: rpcFilter filters the calls to raft.
	filter bool
}

// simShape selects the size and the faults of a world.
type simShape struct {
	lateSnapshots bool // a snapshot may arrive after its sender has abandoned the call
	largeState    bool // a snapshot takes longer than a lease
	small         bool // four nodes, three voters
	single        bool // one voter
	five          bool // six nodes, five voters
	restarts      bool // nodes restart often, and then know only the first view of the catalog
	torn          bool // a node may crash between two writes of one call, and calls may arrive twice
	full          bool // disks of nodes get full and get free space again
	wipes         bool // nodes are lost while majorities remain, and new nodes get their addresses
}

type simFault string

const (
	simTwoLeaders simFault = "two leaders of one term"
	simIncomplete simFault = "a leader without a committed entry"
	simDiverged   simFault = "two entries at one index"
	simStaleRead  simFault = "a stale read"
	simTwoLives   simFault = "two lifetimes under one id"
	simDamage     simFault = "a damaged log"
	simWedged     simFault = "a wedged group"
)

type simFailure struct {
	fault simFault
	text  string
	step  int
}

type simKind uint8

const (
	simPreVote simKind = iota
	simPreVoteAnswer
	simVote
	simVoteAnswer
	simAppend
	simAppendAnswer
	simInstall
	simInstallAnswer
	simHeartbeat
	simTimeoutNow
	simProbe
	simProbeAnswer
	simIndex
	simIndexAnswer
	simMember
	simMemberAnswer
)

// simMsg is a call in flight, or its answer. The replica asker made the call. It receives the
// answer only if it still runs.
type simMsg struct {
	kind      simKind
	ok        bool
	transfer  bool
	again     bool // nobody waits for the answer
	from, to  int  // nodes
	toID      raft.ServerID
	fromID    raft.ServerID
	fromAddr  string
	life      uint64
	call      uint64
	term      uint64
	index     uint64
	indexTerm uint64
	lastLog   uint64
	commit    uint64
	entries   []simEntry
	first     uint64 // index of entries[0]
	snap      simSnap
	repl      *simRepl
	asker     *simRaft
	op        *simOp
}

// simOp is a read, or another question that needs a proof of leadership.
type simOp struct {
	r       *simRaft
	term    uint64
	need    int
	floor   uint64 // for a read: the highest index that was acknowledged before the read began
	done    func()
	read    bool
	counted []uint64 // the lifetimes that agreed
}

// simDrop is a replica that its node is about to delete.
type simDrop struct {
	closed bool
	call   uint64
}

type simNode struct {
	key  string
	addr string
	up   bool
	lost bool
	full bool // the node's disk is full

	view, kept int // indexes in simWorld.views: the known view, and the one after a restart

	disk    *simDisk
	replica *simRaft
	deleted int64 // highest number of a deleted replica; -1 for none
	drop    *simDrop
}

type simName struct {
	node   int
	number uint64
}

type simWorld struct {
	rng      *rand.Rand
	rules    simRules
	shape    simShape
	trailing uint64 // number of entries that the log keeps before a snapshot's index
	caughtUp uint64 // CaughtUpEntries

	nodes []simNode
	cut   [simNodesMax][simNodesMax]bool // [sender][receiver]
	bag   []simMsg                       // messages in flight
	views []*catalog.View                // the catalog after each command
	sent  []*catalog.Command             // commands in flight to the catalog
	names map[raft.ServerID]simName

	step int
	calm bool // the faults have stopped
	// placed is the target before the last move.
	placed               []string
	lives, calls, idents uint64 // the last numbers of lifetimes, calls and idents

	// The checks use these. acked is the highest index that a leader has acknowledged. history has
	// the ident of each committed entry by index, and historyAt the term in which it was committed.
	// leaders maps each term to the lifetime that led it, and began maps each Raft id to the
	// lifetime that began with it.
	acked     uint64
	conf      []raft.Server // the newest configuration that a leader has committed
	confAt    uint64
	history   []uint64
	historyAt []uint64
	leaders   map[uint64]uint64
	began     map[raft.ServerID]uint64
	only      simFault // the one check to make; "" for all
	failure   *simFailure

	stats   simStats
	tracing bool
	trace   []string
}

type simStats struct {
	steps, elections, commits, reads, moves, deletions, retired, blanks, snapshots, installs, crashes, wipes, fills, waits, unstored, cutShort int
}

func (s *simStats) add(o simStats) {
	s.steps += o.steps
	s.elections += o.elections
	s.commits += o.commits
	s.reads += o.reads
	s.moves += o.moves
	s.deletions += o.deletions
	s.retired += o.retired
	s.blanks += o.blanks
	s.snapshots += o.snapshots
	s.installs += o.installs
	s.crashes += o.crashes
	s.wipes += o.wipes
	s.fills += o.fills
	s.waits += o.waits
	s.unstored += o.unstored
	s.cutShort += o.cutShort
}

func (w *simWorld) fail(fault simFault, format string, args ...any) {
	if w.failure != nil || w.only != "" && w.only != fault {
		return
	}
	w.failure = &simFailure{fault, fmt.Sprintf(format, args...), w.step}
	w.note("FAILED: %s: %s", fault, w.failure.text)
}

func (w *simWorld) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%5d ", w.step)+fmt.Sprintf(format, args...))
	}
}

func (w *simWorld) ident() uint64    { w.idents++; return w.idents }
func (w *simWorld) nextCall() uint64 { w.calls++; return w.calls }

func (w *simWorld) addrOf(d *simDisk) string { return string(d.id) + "@" + w.nodes[d.node].addr }

func (w *simWorld) nameOf(id raft.ServerID) simName {
	if name, known := w.names[id]; known {
		return name
	}
	key, number := catalog.ParseReplicaID(string(id))
	name := simName{slices.IndexFunc(w.nodes, func(n simNode) bool { return n.key == key }), number}
	w.names[id] = name
	return name
}

// send sends a call to a member.
func (w *simWorld) send(r *simRaft, to raft.Server, m simMsg) {
	m.from, m.to, m.toID = r.disk.node, w.nameOf(to.ID).node, to.ID
	m.fromID, m.fromAddr, m.asker = r.disk.id, w.addrOf(r.disk), r
	w.post(m)
}

func (w *simWorld) post(m simMsg) {
	if len(w.bag) >= simBagMax {
		w.take(w.rng.IntN(len(w.bag)))
	}
	w.bag = append(w.bag, m)
}

func (w *simWorld) take(i int) simMsg {
	m := w.bag[i]
	last := len(w.bag) - 1
	w.bag[i] = w.bag[last]
	w.bag[last] = simMsg{}
	w.bag = w.bag[:last]
	return m
}

func (w *simWorld) answer(m *simMsg, r *simRaft, kind simKind, answer simMsg) {
	if m.again {
		return
	}
	answer.kind, answer.from, answer.to, answer.call, answer.asker, answer.repl, answer.op = kind, m.to, m.from, m.call, m.asker, m.repl, m.op
	if r != nil {
		answer.life, answer.fromID = r.disk.life, r.disk.id
	}
	w.post(answer)
}

func (w *simWorld) reaches(from, to int) bool { return from == to || !w.cut[from][to] }

// tears crashes the node of a replica between two writes, and reports whether it did.
func (w *simWorld) tears(r *simRaft) bool {
	n := &w.nodes[r.disk.node]
	if !w.shape.torn || w.calm || n.replica != r || w.rng.IntN(40) > 0 {
		return false
	}
	w.crash(r.disk.node)
	return true
}

// deliver delivers a message, or loses it.
func (w *simWorld) deliver(m simMsg) {
	if w.shape.torn && m.kind&1 == 0 && m.kind < simMember && w.rng.IntN(20) == 0 {
		first := m
		first.again = true
		w.post(first) // the sender repeats the call: it ignores the answer to this copy
	}
	if !w.reaches(m.from, m.to) || !w.nodes[m.to].up {
		return
	}
	n := &w.nodes[m.to]
	r := n.replica
	if r != nil {
		if (r.waits || r.receives != nil) && m.kind != simMember && m.kind != simMemberAnswer && m.kind != simProbe {
			return // raft does not receive it
		}
		if !r.waits {
			r.former = nil // the main loop runs again, so the old replication has ended
		}
	}
	if m.asker != nil && m.kind&1 == 1 && m.kind != simTimeoutNow { // an answer
		if r == nil || r != m.asker {
			return
		}
	}
	switch m.kind {
	case simPreVoteAnswer:
		r.preVoteAnswered(&m)
		return
	case simVoteAnswer:
		r.voteAnswered(&m)
		return
	case simAppendAnswer:
		r.appendAnswered(&m)
		return
	case simInstallAnswer:
		r.installAnswered(&m)
		return
	case simProbeAnswer:
		w.proved(&m)
		return
	case simIndexAnswer:
		if m.index > 0 {
			w.readDone(m.op, m.index, "of a follower")
		}
		return
	case simMemberAnswer:
		w.dropAnswered(m.to, &m)
		return
	case simMember:
		w.serveMember(r, &m)
		return
	}
	if r == nil || w.rules.named && !r.is(m.toID) {
		return
	}
	switch m.kind {
	case simPreVote:
		term, ok := r.requestPreVote(&m)
		w.answer(&m, r, simPreVoteAnswer, simMsg{term: term, ok: ok})
	case simVote:
		term, ok := r.requestVote(&m)
		w.answer(&m, r, simVoteAnswer, simMsg{term: term, ok: ok})
	case simAppend:
		last := uint64(0) // the index of the last entry in the call
		if len(m.entries) > 0 {
			last = m.first + uint64(len(m.entries)) - 1
		}
		ok, lastLog := r.appendEntries(&m)
		a := simMsg{term: r.disk.term, ok: ok, lastLog: lastLog, index: last}
		if w.tracing && w.calm {
			w.note("append of %s to %s: prev %d.%d, %d entries, commit %d: %v, last %d", m.fromID, m.toID, m.index, m.indexTerm, len(m.entries), m.commit, ok, lastLog)
		}
		w.answer(&m, r, simAppendAnswer, a)
	case simHeartbeat:
		r.appendEntries(&m)
	case simInstall:
		if !w.shape.lateSnapshots && m.call != m.repl.calling {
			return
		}
		if w.shape.largeState && !r.holds(&m.snap) && r.hears(&m) {
			r.receives = &simReceipt{m, w.receiptTurns()}
			return
		}
		w.install(r, &m)
	case simTimeoutNow:
		r.timeoutNow(&m)
	case simProbe, simIndex:
		term, index := w.standing(r, &m)
		w.answer(&m, r, m.kind+1, simMsg{term: term, index: index})
	}
}

// install makes a replica restore a snapshot that has arrived.
func (w *simWorld) install(r *simRaft, m *simMsg) {
	w.stats.installs++
	ok, reopen := r.installSnapshot(m)
	if w.tracing {
		w.note("%s (life %d) is sent a snapshot of entry %d by %s: %v", r.disk.id, r.disk.life, m.snap.index, m.fromID, ok)
	}
	w.answer(m, r, simInstallAnswer, simMsg{term: r.disk.term, ok: ok, index: m.snap.index})
	if reopen {
		w.open(&w.nodes[r.disk.node], nil)
	}
}

// simReceipt is a snapshot that arrives in pieces.
type simReceipt struct {
	call simMsg
	left int // turns of receive
}

// receiptTurns returns the number of turns that a snapshot takes. Without faults, a snapshot takes
// twice as long as a lease.
func (w *simWorld) receiptTurns() int {
	if w.calm {
		return 2 * simLeaseRounds
	}
	return 1 + w.rng.IntN(30)
}

// receives reports whether a follower receives the snapshot that its leader sends it.
func (w *simWorld) receives(f *simRepl) bool {
	r := w.nodes[w.nameOf(f.id).node].replica
	return r != nil && r.receives != nil && r.receives.call.repl == f && r.receives.call.call == f.calling
}

// receive gives a replica the next piece of a snapshot. The sender decides like leaderStream
// whether it continues.
func (w *simWorld) receive(at int) {
	r := w.nodes[at].replica
	if r == nil || r.receives == nil {
		return
	}
	m := &r.receives.call
	sender := m.asker
	sends := w.nodes[m.from].up && w.nodes[m.from].replica == sender && w.reaches(m.from, at) && w.reaches(at, m.from)
	if leads := sends && sender.state == simLeader && sender.lead.term == m.term; !leads {
		sends = sends && w.rules.sendsRest && (sender.leader == "" || sender.leaderID == sender.disk.id) && !sender.waits
	}
	r.receives.left--
	switch {
	case !sends:
		w.stats.cutShort++
		r.receives = nil
	case r.receives.left == 0:
		r.receives = nil
		w.install(r, m)
	}
}

// standing answers a probe, like Prover.answerProbe.
func (w *simWorld) standing(r *simRaft, m *simMsg) (term, index uint64) {
	if r.rules().probesNamed && (!replica.Contains(r.latest, r.disk.id) || !replica.Contains(r.latest, m.fromID)) {
		return ^uint64(0), 0
	}
	if m.kind == simIndex && r.ready() && m.term <= r.lead.term && replica.TwoSuffice(simVoters(r.latest), m.fromID, r.disk.id) {
		index = r.committedFor()
	}
	return r.disk.term, index
}

func simVoters(conf []raft.Server) []raft.ServerID {
	var voters []raft.ServerID
	for _, s := range conf {
		if s.Suffrage == raft.Voter {
			voters = append(voters, s.ID)
		}
	}
	return voters
}

// prove begins a proof like Prover.ProveTerm. If the proof succeeds, it calls op.done.
func (w *simWorld) prove(op *simOp) {
	r := op.r
	op.term = r.disk.term
	voters := simVoters(r.latest)
	op.need = len(voters)/2 + 1
	if slices.Contains(voters, r.disk.id) {
		op.need--
		op.counted = append(op.counted, r.disk.life)
	}
	if op.need == 0 {
		op.done()
		return
	}
	for _, id := range voters {
		if id != r.disk.id {
			w.send(r, raft.Server{ID: id}, simMsg{kind: simProbe, term: op.term, op: op})
		}
	}
}

func (w *simWorld) proved(m *simMsg) {
	op := m.op
	if op.need == 0 || m.term > op.term {
		return
	}
	op.counted = append(op.counted, m.life)
	if op.need--; op.need == 0 && op.r.ready() && op.r.lead.term == op.term {
		op.done()
	}
}

func (w *simWorld) readDone(op *simOp, index uint64, form string) {
	w.stats.reads++
	if index < op.floor {
		w.fail(simStaleRead, "a read %s at %s (life %d, term %d) returned what was there at entry %d, entry %d was acknowledged before (lives that agreed: %v)",
			form, op.r.disk.id, op.r.disk.life, op.r.disk.term, index, op.floor, op.counted)
	}
}

// startRead begins a linearizable read at a replica, like Prover.AskFresh and Prover.AskLeader.
func (w *simWorld) startRead(r *simRaft) {
	op := &simOp{r: r, floor: w.acked, read: true}
	if r.ready() {
		op.done = func() { w.readDone(op, r.committedFor(), "of the leader") }
		w.prove(op)
	} else if r.leader != "" && r.leaderID != r.disk.id {
		w.send(r, raft.Server{ID: r.leaderID}, simMsg{kind: simIndex, term: r.disk.term, op: op})
	}
}

// elected checks a replica that has just won an election.
func (w *simWorld) elected(r *simRaft) {
	w.stats.elections++
	d := r.disk
	if w.tracing {
		w.note("%s (life %d) leads term %d by the votes of lives %v, its last entry is %d, configuration %s", d.id, d.life, d.term, r.voters, r.lastLog, simConf(r.latest))
	}
	if other, led := w.leaders[d.term]; led && other != d.life {
		w.fail(simTwoLeaders, "lives %d and %d of term %d", other, d.life, d.term)
	}
	w.leaders[d.term] = d.life
	for i := uint64(len(w.history)); i > 0; i-- {
		ident, at := w.history[i-1], w.historyAt[i-1]
		if ident == 0 || at >= d.term {
			continue
		}
		if e := d.entry(i); e == nil && i > d.snap.index || e != nil && e.ident != ident {
			w.fail(simIncomplete, "life %d of %s leads term %d by the votes of lives %v; entry %d, committed in term %d, is not in its log",
				d.life, d.id, d.term, r.voters, i, at)
		}
		break // a log with this entry has the earlier entries too
	}
}

func (w *simWorld) record(index, ident, term uint64) bool {
	for uint64(len(w.history)) < index {
		w.history, w.historyAt = append(w.history, 0), append(w.historyAt, 0)
	}
	have := &w.history[index-1]
	if *have == 0 {
		*have, w.historyAt[index-1] = ident, term
	}
	return *have == ident
}

// committed records the entries that a leader has just committed.
func (w *simWorld) committed(r *simRaft) {
	w.stats.commits++
	for i := r.commit; i > 0; i-- {
		e := r.disk.entry(i)
		if e == nil {
			break
		}
		known := i <= uint64(len(w.history)) && w.history[i-1] == e.ident
		if !w.record(i, e.ident, r.disk.term) {
			w.fail(simDiverged, "life %d of %s commits another entry %d in term %d than was committed in term %d",
				r.disk.life, r.disk.id, i, r.disk.term, w.historyAt[i-1])
		}
		if known {
			break
		}
	}
	w.acked = max(w.acked, r.commit)
	if r.accAt > w.confAt {
		w.conf, w.confAt = r.accepted, r.accAt
	}
}

func (w *simWorld) appliedEntry(r *simRaft, index uint64, e *simEntry) {
	if !w.record(index, e.ident, e.term) {
		w.fail(simDiverged, "life %d of %s applies another entry %d", r.disk.life, r.disk.id, index)
	}
}

func (w *simWorld) restored(r *simRaft, s simSnap) {
	if !w.record(s.index, s.ident, s.term) {
		w.fail(simDiverged, "life %d of %s restores a snapshot of another entry %d", r.disk.life, r.disk.id, s.index)
	}
}

func (w *simWorld) describe() string {
	var b strings.Builder
	for i := range w.nodes {
		n := &w.nodes[i]
		fmt.Fprintf(&b, "%s up=%v view=%d/%d deleted=%d", n.key, n.up, n.view, len(w.views)-1, n.deleted)
		if d := n.disk; d != nil {
			fmt.Fprintf(&b, " life %d as %s term %d vote %d:%s log %d..%d snapshot %d", d.life, d.id, d.term, d.voteTerm, d.voteFor, d.first, d.lastIndex(), d.snap.index)
		}
		if r := n.replica; r != nil {
			fmt.Fprintf(&b, " state %d leader %s commit %d applied %d last %d latest %s@%d committed @%d", r.state, r.leaderID, r.commit, r.applied, r.lastLog, simConf(r.latest), r.latestAt, r.accAt)
			if r.lead != nil {
				fmt.Fprintf(&b, " ready %v transfer %q change %v", r.lead.ready, r.lead.transferTo, r.lead.change)
			}
		}
		b.WriteString("\n")
	}
	p := w.views[len(w.views)-1].Groups[simGroup]
	fmt.Fprintf(&b, "target %v replicas %v next %d revision %d\n", p.Target, p.Replicas, p.NextReplica, p.Revision)
	return b.String()
}
