package replica

import (
	"errors"
	"fmt"
	"io"
	"net"
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
	// none is open yet, raft would ask again only after an election timeout. raftTransport asks
	// again every beginAgainAfter, for beginMax. A pre-vote changes nothing at the other replica.
	beginAgainAfter = 5 * time.Millisecond
	beginMax        = 500 * time.Millisecond
	// raft pauses after each failed append, twice as long each time, up to ten seconds. A follower
	// that becomes reachable again would lag until then. So raftTransport itself repeats an append
	// to an unreachable node every reachPause, for reachMax.
	reachPause = 200 * time.Millisecond
	reachMax   = time.Minute
	// poolConnsMax bounds the idle connections to one peer: raft's replicator, heartbeats and
	// votes use one each.
	poolConnsMax = 3
)

// raftTransport is raft's own network transport with a few changes.
//
// It has no fast path for heartbeats. raft's would change term and state in the connection's
// goroutine, beside raft's main loop (hashicorp/raft#695). Here heartbeats go through the main
// loop like any other call.
//
// It sends fewer heartbeats (see contact). If another successful call began less than pause ago, it
// does not send a heartbeat: raft gets the answer of that call. So a leader that is cut off may
// notice up to pause later. Nothing else depends on the leader's lease (see prover.ProveTerm). The
// other heartbeats wait for the next beat (see Beats).
//
// It sends the appends to a follower that keeps up together with those of other groups (see
// stream.Streams), and larger ones on connections of the group.
//
// It adds to a sent snapshot the cold rows and the sets that the stored snapshot names on this
// node's disk (see carry).
//
// Its incoming calls pass through filter, unless filter is nil. filter also forbids vote requests
// at times. An append never tells a follower to commit an entry that the append does not compare. A
// replica without a vote gets only committed entries.
//
// The embedded transport provides the optional RequestPreVote and Close.
type raftTransport struct {
	*raft.NetworkTransport
	dials    *dialCounter
	pause    time.Duration
	contacts *sync.Map       // raft.ServerID → *contact
	streams  *stream.Streams // nil sends each call by itself
	beats    *Beats          // nil if streams is nil
	group    uint32
	closed   *closedOnce
	muted    *atomic.Bool                                       // set while no appends are sent; nil for never
	carry    func(id string, state io.Reader) (*carried, error) // Replica.carry; nil if snapshots name no data outside
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
		// An append with entries waits here until the leader is no longer muted, because raft would
		// pause longer after each error.
		if isHeartbeat(args) || t.closed.within(reachPause) {
			return errHangs
		}
	}
	c := t.contact(id)
	bounded := *args
	boundCommit(&bounded)
	together := t.streams != nil
	if t.spares(c, &bounded, together) {
		// Leave out the header: the next answer is decoded into resp, and would overwrite the
		// sender's name in it.
		*resp = raft.AppendEntriesResponse{Term: args.Term, LastLog: args.PrevLogEntry, Success: true}
		return nil
	}
	if !t.filter.leads(args.Term) { // the heartbeat may have waited for the beat
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

// errHangs is returned for an append that is not sent, and for an order to campaign that is refused,
// because this node's disk or state machine hangs.
var errHangs = errors.New("this node's disk or state machine hangs: others are to lead")

// unreached reports whether an append failed because its node is unreachable, or became so.
func unreached(err error) bool {
	return errors.Is(err, stream.ErrUnreached) || errors.Is(err, stream.ErrLost)
}

// appendTogether sends an append together with those of other groups to the same node.
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

// spares reports whether a call need not be sent, because a recent successful one already told the
// follower the same. A heartbeat to a follower that answered recently first waits for the next
// beat.
func (t raftTransport) spares(c *contact, args *raft.AppendEntriesRequest, together bool) bool {
	now, pause := time.Now(), t.pause
	switch {
	case !isHeartbeat(args):
		return together && c.knows(args) && c.recent(now, args.Term, pause*5/4)
	case together && c.waits(now, args.Term, pause, t.beats.next(now)):
		t.beats.wait(now, t.closed.done)
		pause /= 2 // otherwise the next heartbeat would be late
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

// CloseStreams overrides raft.NetworkTransport's. It also ends the calls that travel with those of
// other groups.
func (t raftTransport) CloseStreams() {
	t.closed.close()
	t.NetworkTransport.CloseStreams()
}

// closedOnce is a channel that may be closed more than once.
type closedOnce struct {
	once sync.Once
	done chan struct{}
}

func newClosedOnce() *closedOnce { return &closedOnce{done: make(chan struct{})} }

// within waits for d at most, and reports whether the channel is closed.
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
	opened, _ := data.(storage.Opened) // raft always passes one
	stream, err := t.carry(opened.ID, data)
	if err != nil {
		return err
	}
	defer stream.Close()
	larger := *args
	larger.Size += stream.Added()
	return t.NetworkTransport.InstallSnapshot(id, named(id, target), &larger, resp, leaderStream{stream, t, args.Term})
}

// maySend returns an error if a snapshot that this replica sends, as the leader of a term, must end.
func (t raftTransport) maySend(term uint64) error {
	switch {
	case !t.filter.inTerm(term):
		return errNotLeading
	case t.muted != nil && t.muted.Load():
		return errHangs // otherwise followers would believe that this leader works
	}
	return nil
}

// leaderStream is a snapshot that is sent. Its Read fails once maySend does: the follower's main loop
// reads the snapshot and cannot vote before the end. raft closes the connection of a failed call,
// and the follower then discards the part that it has. A leader that only lost its lease sends the
// rest: it may have lost the lease because this follower answers no heartbeats meanwhile.
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
// candidate that sends them in the same term. So these bytes name the replica, because another
// replica may have this replica's address by then.
func (raftTransport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(rpc.ReplicaAt(id, string(addr)))
}

// TimeoutNow implements raft.Transport.
func (t raftTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.anew(id, func() error { return t.NetworkTransport.TimeoutNow(id, named(id, target), args, resp) })
}

// anew repeats a call that failed because its peer closed the connection, until a new connection
// was dialled for it. raft keeps idle connections and does not notice that they ended when the
// peer restarted. It does not repeat votes, so a candidate would wait one to two seconds for
// another election. A repeated call changes nothing: a vote goes again to the same candidate, and
// a replica that was told to lead refuses a second call (checkTimeoutNow).
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

// Dial implements raft.StreamLayer. address has the form that named returns.
func (d *dialCounter) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, _, _ := strings.Cut(string(address), "@")
	d.mu.Lock()
	d.mu.dials[id]++
	d.mu.Unlock()
	return d.StreamLayer.Dial(address, timeout)
}

// to returns how often raft dialled a replica.
func (d *dialCounter) to(id raft.ServerID) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.dials[string(id)]
}

// named returns an address of the group's configuration that reaches only one replica. raft dials
// it if the address book does not know the replica's node.
func named(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return rpc.ReplicaAt(id, string(addr))
}

// isHeartbeat reports whether a call has no content: it only shows that the leader lives.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && args.LeaderCommitIndex == 0
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

// newRaftTransport returns the transport of a group. It dials nodes at addrs, or at the addresses
// in the configuration if addrs is nil.
func newRaftTransport(layer raft.StreamLayer, addrs addressBook, heartbeat time.Duration, logger hclog.Logger) raftTransport {
	dials := &dialCounter{StreamLayer: layer}
	dials.mu.dials = map[string]uint64{}
	config := &raft.NetworkTransportConfig{
		Stream: dials,
		Logger: logger,
		// One call at a time to a peer. More would use raft's pipeline, which can deadlock once a
		// follower has rejected an entry.
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
