package replica

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
)

const (
	// rpcTimeout bounds one call between two replicas.
	rpcTimeout = stream.AppendTimeoutMax
	// snapshotBytesPerTimeout scales the time for sending and restoring a snapshot: the time grows
	// by rpcTimeout for each snapshotBytesPerTimeout bytes.
	snapshotBytesPerTimeout = 16 << 20
	// The first voter of a new group campaigns at once, while the others open their replicas. If
	// none is open yet, raft would repeat its pre-vote only after an election timeout.
	// raftTransport repeats it every beginAgainAfter, for beginMax. This is safe, because a
	// pre-vote changes no state of the other replica.
	beginAgainAfter = 5 * time.Millisecond
	beginMax        = 500 * time.Millisecond
	// raft pauses after each failed append, twice as long each time, up to ten seconds. A follower
	// that becomes reachable again would lag during the pause. So raftTransport itself repeats an
	// append to an unreachable node every reachPause, for reachMax.
	reachPause = 200 * time.Millisecond
	reachMax   = time.Minute
	// poolConnsMax bounds the idle connections to one peer: raft's replicator, heartbeats and
	// votes use one each.
	poolConnsMax = 3
)

// raftTransport is raft's own network transport with a few changes.
//
// It has no fast path for heartbeats. raft's fast path changes term and state in the connection's
// goroutine, concurrently with raft's main loop (hashicorp/raft#695). Here the main loop handles
// heartbeats, like all calls.
//
// It sends fewer heartbeats. If a successful call to the follower began less than t.pause ago, the
// transport answers raft's heartbeat itself (see contact). So a leader that is cut off may step
// down up to t.pause later. That is harmless, because reads do not rely on the leader's lease (see
// Prover.ProveTerm). The other heartbeats wait for the next beat (see Beats).
//
// It sends small appends on the node's stream, together with appends of other groups (see
// stream.Streams), and large appends on connections of the group.
//
// When it sends a snapshot, it adds the cold rows and the sets that the snapshot file names. It
// reads them from this node's disk (see carry).
//
// Its incoming calls pass through filter, unless filter is nil. filter also decides which vote
// requests and appends this replica may send (see rpcFilter).
//
// The embedded transport provides the optional RequestPreVote and Close.
type raftTransport struct {
	*raft.NetworkTransport
	dials    *dialCounter
	pause    time.Duration
	contacts *sync.Map       // raft.ServerID → *contact
	streams  *stream.Streams // nil sends each append on a connection of the group
	beats    *Beats          // nil if streams is nil
	group    uint32
	closed   *closedOnce
	muted    *atomic.Bool                                       // while set, no appends are sent; nil if it is never set
	carry    func(id string, state io.Reader) (*carried, error) // Snapshotter.carry; nil if snapshot files are complete
	filter   *rpcFilter
	// beginsUntil is the time until which the first voter of a new group repeats a pre-vote that
	// failed. It is zero for any other replica.
	beginsUntil time.Time
}

// Consumer implements raft.Transport.
func (t raftTransport) Consumer() <-chan raft.RPC {
	if t.filter == nil {
		return t.NetworkTransport.Consumer()
	}
	return t.filter.rpcs
}

// RequestVote implements raft.Transport.
func (t raftTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.filter.mayCampaign(); err != nil {
		return err
	}
	return t.anew(id, func() error { return t.NetworkTransport.RequestVote(id, named(id, target), args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (t raftTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := t.filter.mayCampaign(); err != nil {
		return err
	}
	err := t.anew(id, func() error { return t.NetworkTransport.RequestPreVote(id, named(id, target), args, resp) })
	for err != nil && time.Now().Before(t.beginsUntil) && !t.IsShutdown() {
		time.Sleep(beginAgainAfter)
		err = t.NetworkTransport.RequestPreVote(id, named(id, target), args, resp)
	}
	return err
}

// AppendEntries implements raft.Transport.
func (t raftTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := t.filter.awaitCommit(id, args, t.closed); err != nil {
		return err
	}
	for t.muted != nil && t.muted.Load() {
		// An append with entries waits here until the leader is no longer muted. After an error,
		// raft would pause longer each time.
		if isHeartbeat(args) || t.closed.within(reachPause) {
			return errHangs
		}
	}
	c := t.contact(id)
	bounded := *args
	boundCommit(&bounded)
	together := t.streams != nil
	if t.spares(c, &bounded, together) {
		// Omit the header, because it shares the memory of the sender's id. raft decodes the next
		// answer into resp, and would overwrite that id.
		*resp = raft.AppendEntriesResponse{Term: args.Term, LastLog: args.PrevLogEntry, Success: true}
		return nil
	}
	if !t.filter.leads(args.Term) { // the heartbeat may have waited in spares for the next beat
		return errNotLeading
	}
	if together && stream.Fits(&bounded) {
		began := time.Now()
		err := t.appendTogether(c, id, target, &bounded, resp)
		for unreached(err) && !isHeartbeat(args) && time.Since(began) < reachMax && t.filter.leads(args.Term) && !t.closed.within(reachPause) {
			err = t.appendTogether(c, id, target, &bounded, resp)
		}
		if !errors.Is(err, stream.ErrNoStream) {
			return err
		}
	}
	began := time.Now()
	err := t.NetworkTransport.AppendEntries(id, named(id, target), &bounded, resp)
	if err == nil && resp.Success && resp.Term == args.Term {
		c.took(began, args, nil, 0)
	}
	return err
}

// errHangs is returned while this node's disk or state machine hangs, for an append or snapshot
// that was not sent and for a refused order to campaign.
var errHangs = errors.New("this node's disk or state machine hangs: others are to lead")

// unreached reports whether an append failed because the follower's node is or became unreachable.
func unreached(err error) bool {
	return errors.Is(err, stream.ErrUnreached) || errors.Is(err, stream.ErrLost)
}

// appendTogether sends an append on the stream to the follower's node.
func (t raftTransport) appendTogether(c *contact, id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	conn, err := t.streams.Conn(NodeOf(id), string(target), t.closed.done)
	if err != nil {
		return err
	}
	began := time.Now()
	answer, err := conn.Append(t.group, c.to, args, t.closed.done)
	if err != nil {
		return err
	}
	if answer.Success && answer.Term == args.Term {
		c.took(began, args, conn, answer.Opening)
	}
	*resp = raft.AppendEntriesResponse{Term: answer.Term, LastLog: answer.Last, Success: answer.Success, NoRetryBackoff: answer.NoPause}
	return nil
}

// spares reports whether an append can be omitted, because a recent successful call had the same
// content. Before it decides about a heartbeat to a follower that answered recently, it waits for
// the next beat.
func (t raftTransport) spares(c *contact, args *raft.AppendEntriesRequest, together bool) bool {
	now, pause := time.Now(), t.pause
	switch {
	case !isHeartbeat(args):
		return together && c.knows(args) && c.recent(now, args.Term, pause*5/4)
	case together && c.waits(now, args.Term, pause, t.beats.next(now)):
		t.beats.wait(now, t.closed.done)
		pause /= 2 // an older call does not spare this heartbeat, or the next one would come too late
	}
	return c.recent(time.Now(), args.Term, pause)
}

// contact returns the contact of a follower.
func (t raftTransport) contact(id raft.ServerID) *contact {
	if c, known := t.contacts.Load(id); known {
		return c.(*contact)
	}
	c, _ := t.contacts.LoadOrStore(id, &contact{to: rpc.Addressee(string(id))})
	return c.(*contact)
}

// CloseStreams overrides raft.NetworkTransport.CloseStreams. It also ends the group's appends on
// streams.
func (t raftTransport) CloseStreams() {
	t.closed.close()
	t.NetworkTransport.CloseStreams()
}

// closedOnce has a channel whose close may be called more than once.
type closedOnce struct {
	once sync.Once
	done chan struct{}
}

func newClosedOnce() *closedOnce { return &closedOnce{done: make(chan struct{})} }

// within waits until the channel is closed, but at most for d. It reports whether the channel is
// closed.
func (c *closedOnce) within(d time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(d):
		return false
	}
}

func (c *closedOnce) close() { c.once.Do(func() { close(c.done) }) }

// AppendEntriesPipeline implements raft.Transport: it offers no pipeline (see newRaftTransport).
func (raftTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// InstallSnapshot implements raft.Transport.
func (t raftTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if !t.filter.leads(args.Term) {
		return errNotLeading
	}
	if err := t.maySend(args.Term); err != nil {
		return err
	}
	if t.carry == nil {
		return t.NetworkTransport.InstallSnapshot(id, named(id, target), args, resp, leaderStream{data, t, args.Term})
	}
	opened, _ := data.(storage.Opened) // raft always passes a storage.Opened
	stream, err := t.carry(opened.ID, data)
	if err != nil {
		return err
	}
	defer stream.Close()
	larger := *args
	larger.Size += stream.Added()
	return t.NetworkTransport.InstallSnapshot(id, named(id, target), &larger, resp, leaderStream{stream, t, args.Term})
}

// maySend returns an error if this replica must stop sending a snapshot that it began as the
// leader of term.
func (t raftTransport) maySend(term uint64) error {
	switch {
	case !t.filter.sendsRest(term):
		return errNotLeading
	case t.muted != nil && t.muted.Load():
		return errHangs // the snapshot would keep the follower from voting for another leader
	}
	return nil
}

// leaderStream is a snapshot that is being sent. Its Read fails once maySend does, because the
// follower cannot vote while its main loop reads the snapshot. raft closes the connection of a
// failed call, and the follower then discards the part that it received. A leader that only lost
// its lease still sends the rest: the follower answers no heartbeats during the snapshot, and may
// itself be the cause. A leader that was elected again also sends the rest.
type leaderStream struct {
	io.Reader
	trans raftTransport
	term  uint64
}

func (s leaderStream) Read(p []byte) (int, error) {
	if err := s.trans.maySend(s.term); err != nil {
		return 0, err
	}
	return s.Reader.Read(p)
}

// EncodePeer implements raft.Transport. raft encodes only this replica's own address, which it
// sends with each call. A voter remembers its candidate by these bytes, and votes again for any
// candidate that sends them in the same term. So the bytes include the replica's id, because a
// later replica may have the same address.
func (raftTransport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(rpc.ReplicaAt(id, string(addr)))
}

// TimeoutNow implements raft.Transport.
func (t raftTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.anew(id, func() error { return t.NetworkTransport.TimeoutNow(id, named(id, target), args, resp) })
}

// askToLead asks a voter to campaign at once, in the name of self.
func (t raftTransport) askToLead(self raft.ServerID, voter raft.Server) error {
	ask := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(self), Addr: t.EncodePeer(self, t.LocalAddr()),
	}}
	return t.TimeoutNow(voter.ID, voter.Address, ask, &raft.TimeoutNowResponse{})
}

// anew repeats a call that failed because its peer had closed the connection, until the call has
// used a new connection. raft keeps idle connections, and does not notice that they ended when the
// peer restarted. raft does not repeat vote requests, so a candidate would wait one to two seconds
// for the next election. Repeating is safe: a voter gives its vote again to the same candidate, and
// refuses a second TimeoutNow (checkTimeoutNow).
func (t raftTransport) anew(id raft.ServerID, call func() error) error {
	for {
		before := t.dials.to(id)
		err := call()
		if !isClosedByPeer(err) || t.dials.to(id) != before {
			return err
		}
	}
}

// isClosedByPeer reports whether a call failed because its connection ended.
func isClosedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dialCounter counts raft's dials.
type dialCounter struct {
	raft.StreamLayer
	mu struct {
		sync.Mutex
		dials map[string]uint64 // by Raft id
	}
}

// Dial implements raft.StreamLayer. The address is a result of named().
func (d *dialCounter) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, _, _ := strings.Cut(string(address), "@")
	d.mu.Lock()
	d.mu.dials[id]++
	d.mu.Unlock()
	return d.StreamLayer.Dial(address, timeout)
}

// to returns the number of raft's dials to a replica.
func (d *dialCounter) to(id raft.ServerID) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.dials[string(id)]
}

// named adds the replica's Raft id to an address of the group's configuration, so that a dial
// reaches only that replica. raft uses this address if the address book does not know the replica's
// node.
func named(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return rpc.ReplicaAt(id, string(addr))
}

var (
	_ raft.Transport   = raftTransport{}
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// SetHeartbeatHandler does nothing, as raft.Transport allows.
func (raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// addressBook returns the address of a node. If it does not know the node, raft uses the address
// in the group's configuration.
type addressBook func(node string) (addr string, known bool)

var _ raft.ServerAddressProvider = addressBook(nil)

func (a addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	addr, known := a(NodeOf(id))
	if !known {
		return "", fmt.Errorf("no address of node %s is known", NodeOf(id))
	}
	return rpc.ReplicaAt(id, addr), nil
}

// newRaftTransport returns the transport of a group. It dials nodes at the addresses of addrs; if
// addrs is nil, at the addresses of the Raft configuration.
func newRaftTransport(layer raft.StreamLayer, addrs addressBook, heartbeat time.Duration, logger hclog.Logger) raftTransport {
	dials := &dialCounter{StreamLayer: layer}
	dials.mu.dials = map[string]uint64{}
	config := &raft.NetworkTransportConfig{
		Stream: dials,
		Logger: logger,
		// Send one call at a time to a peer. Otherwise raft would use its pipeline, which can
		// deadlock once a follower has rejected an entry.
		MaxRPCsInFlight:         1,
		MaxPool:                 poolConnsMax,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	}
	if addrs != nil {
		config.ServerAddressProvider = addrs
	}
	t := raft.NewNetworkTransportWithConfig(config)
	t.TimeoutScale = snapshotBytesPerTimeout
	return raftTransport{NetworkTransport: t, dials: dials, pause: heartbeat * 2 / 5, contacts: &sync.Map{}, closed: newClosedOnce()}
}

// The filter knows raft's state, so it also decides what this replica may send. A nil filter
// allows everything; tests use it.

// leads reports whether this replica is the leader of the given term. A leader that hears of a
// later term stops leading, but raft requests heartbeats until the term is stored. If the disk
// hangs or is full, those heartbeats would keep followers from voting for another candidate, so the
// transport does not send them.
func (f *rpcFilter) leads(term uint64) bool {
	if f == nil {
		return true // this transport has no replica (in tests)
	}
	r := f.raft.Load()
	return r != nil && r.State() == raft.Leader && r.CurrentTerm() == term
}

// sendsRest reports whether this replica sends the rest of a snapshot that it began as the leader
// of term. It reports true while this replica knows no other leader, unless the replica waits for
// disk space to store a later term.
func (f *rpcFilter) sendsRest(term uint64) bool {
	if f.leads(term) {
		return true
	}
	r, stop := f.raft.Load(), f.g.stop
	if r == nil || stop.Waits() || stop.Usable() != nil {
		return false
	}
	_, leader := r.LeaderWithID()
	return leader == "" || leader == f.g.ID()
}

// withheldPause is the pause between two checks of awaitCommit, a small part of the time that a
// commit takes.
const withheldPause = time.Millisecond

// awaitCommit holds back an append to a replica without a vote until all its entries are
// committed. It returns an error once this replica no longer leads the append's term.
func (f *rpcFilter) awaitCommit(to raft.ServerID, call *raft.AppendEntriesRequest, closed *closedOnce) error {
	for f.leads(call.Term) {
		if f == nil || len(call.Entries) == 0 {
			return nil
		}
		r := f.raft.Load()
		commit := r.CommitIndex()
		// Check again after reading the commit index, because a later leader may have committed
		// other entries at these indexes.
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

// withheld reports whether some entries are not committed and the receiving replica has no vote
// in the leader's latest configuration. It also checks configurations among the entries, because
// raft sends a configuration slightly before it is the latest. No commit waits for a withheld
// append, because only voters of the latest configuration count.
func withheld(to raft.ServerID, entries []*raft.Log, commit uint64, servers []raft.Server) bool {
	if entries[len(entries)-1].Index <= commit {
		return false
	}
	return SuffrageOf(servers, to) != raft.Voter || slices.ContainsFunc(entries, func(e *raft.Log) bool {
		return e.Index > commit && e.Type == raft.LogConfiguration && SuffrageOf(raft.DecodeConfiguration(e.Data).Servers, to) != raft.Voter
	})
}

// mayCampaign returns why raft must not request votes, or nil. raft checks that a follower has a
// vote only when the follower's timer fires. It does not check after a TimeoutNow. A candidate
// also does not stop when it gets a configuration in which it has no vote.
func (f *rpcFilter) mayCampaign() error {
	if f == nil {
		return nil // this transport has no replica (in tests)
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
