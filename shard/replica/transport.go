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
	// snapshotBytesPerTimeout scales the time for sending a snapshot, its
	// restore included: another rpcTimeout for each so many bytes.
	snapshotBytesPerTimeout = 16 << 20
	// The first voter of a new group stands for election at once, and the others open
	// their replicas at about the same time. If none is open yet, raft waits for an
	// election timeout until it asks again; this asks after beginAgainAfter, for
	// beginMax. A pre-vote changes nothing where it is asked for.
	beginAgainAfter = 5 * time.Millisecond
	beginMax        = 500 * time.Millisecond
	// After each append that fails raft pauses, twice as long each time and up to ten
	// seconds, and a follower that can be reached again lags until then. So an append
	// to a node that cannot be reached is sent again here, as raft would, every reachPause
	// for reachMax.
	reachPause = 200 * time.Millisecond
	reachMax   = time.Minute
	// poolConnsMax bounds the idle connections to one peer: raft's replicator,
	// its heartbeat and its votes use one each.
	poolConnsMax = 3
)

// raftTransport is raft's own network transport with a few changes.
//
// It has no fast path for heartbeats: that path changes term and state in the
// connection's goroutine, beside raft's main loop (hashicorp/raft#695). Here
// heartbeats go through the main loop like any other call.
//
// And it sends fewer of them (see contact): one that comes sooner than pause after
// another call has begun that succeeded is answered here as that one was. A leader that
// is cut off may find out later by as much; nothing else rests on its lease (see
// proveTerm). The others wait for the next beat (see Beats).
//
// And appends of a follower that keeps up travel with those of other groups (see
// stream.Streams); larger ones on connections of the group.
//
// And a snapshot that it sends has the cold rows and the sets in it that the stored one names,
// which are on this node's disk (see carry).
//
// And what it receives passes through filter, nil for none, which also says when raft
// must not ask for votes. An append that it sends tells no follower to commit what the append
// does not compare, and a replica without a vote nothing that is not committed.
//
// raft asks for the optional RequestPreVote and Close, which the embedded
// transport has.
type raftTransport struct {
	*raft.NetworkTransport
	dials    *dialCounter
	pause    time.Duration
	contacts *sync.Map       // raft.ServerID → *contact
	streams  *stream.Streams // nil for none: each call travels by itself
	beats    *Beats          // nil without streams
	group    uint32
	closed   *closedOnce
	muted    *atomic.Bool                                       // set while no appends are sent; nil for never
	carry    func(id string, state io.Reader) (*carried, error) // Replica.carry; nil if snapshots name nothing
	filter   *rpcFilter
	// beginsUntil is, for the first voter of a group that is made now, until when it asks
	// again for a pre-vote that has no answer. Zero for any other replica.
	beginsUntil time.Time
}

// Consumer is raft.Transport's.
func (t raftTransport) Consumer() <-chan raft.RPC {
	if t.filter == nil {
		return t.NetworkTransport.Consumer()
	}
	return t.filter.rpcs
}

// RequestVote is raft.Transport's.
func (t raftTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.filter.mayCampaign(); err != nil {
		return err
	}
	return t.anew(id, func() error { return t.NetworkTransport.RequestVote(id, named(id, target), args, resp) })
}

// RequestPreVote is raft.WithPreVote's.
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

// AppendEntries is raft.Transport's.
func (t raftTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := t.filter.awaitCommit(id, args, t.closed); err != nil {
		return err
	}
	for t.muted != nil && t.muted.Load() {
		// Entries wait: raft would pause for longer after each error.
		if isHeartbeat(args) || t.closed.within(reachPause) {
			return errHangs
		}
	}
	c := t.contact(id)
	bounded := *args
	boundCommit(&bounded)
	together := t.streams != nil
	if t.spares(c, &bounded, together) {
		// Without a header: the next answer is decoded into resp, and would be
		// written over the name of the sender if that were in it.
		*resp = raft.AppendEntriesResponse{Term: args.Term, LastLog: args.PrevLogEntry, Success: true}
		return nil
	}
	if !t.filter.leads(args.Term) { // it may have waited for the beat
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

// errHangs is returned for what is not sent while this node's disk hangs.
var errHangs = errors.New("this node's disk hangs: others are to lead")

// unreached reports whether an append failed because its node cannot be reached, or not any more.
func unreached(err error) bool {
	return errors.Is(err, stream.ErrUnreached) || errors.Is(err, stream.ErrLost)
}

// appendTogether sends an append with those of other groups to the same node.
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

// spares reports whether a call need not be sent, because the follower took one a moment
// ago and this one says nothing else. A heartbeat of a follower that was heard of waits
// for the next beat first.
func (t raftTransport) spares(c *contact, args *raft.AppendEntriesRequest, together bool) bool {
	now, pause := time.Now(), t.pause
	switch {
	case !isHeartbeat(args):
		return together && c.knows(args) && c.recent(now, args.Term, pause*5/4)
	case together && c.waits(now, args.Term, pause, t.beats.next(now)):
		t.beats.wait(now, t.closed.done)
		pause /= 2 // else the next would come late
	}
	return c.recent(time.Now(), args.Term, pause)
}

// contact returns what is known of a follower.
func (t raftTransport) contact(id raft.ServerID) *contact {
	if c, known := t.contacts.Load(id); known {
		return c.(*contact)
	}
	c, _ := t.contacts.LoadOrStore(id, &contact{to: rpc.Addressee(string(id))})
	return c.(*contact)
}

// CloseStreams is raft.NetworkTransport's. It also ends the calls that travel with those
// of other groups.
func (t raftTransport) CloseStreams() {
	t.closed.close()
	t.NetworkTransport.CloseStreams()
}

// closedOnce is a channel that may be closed again.
type closedOnce struct {
	once sync.Once
	done chan struct{}
}

func newClosedOnce() *closedOnce { return &closedOnce{done: make(chan struct{})} }

// within waits for d at most, and reports whether the channel was closed.
func (c *closedOnce) within(d time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(d):
		return false
	}
}

func (c *closedOnce) close() { c.once.Do(func() { close(c.done) }) }

// AppendEntriesPipeline is raft.Transport's: there is none (see newRaftTransport).
func (raftTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// InstallSnapshot is raft.Transport's.
func (t raftTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	switch {
	case !t.filter.leads(args.Term):
		return errNotLeading
	case t.muted != nil && t.muted.Load():
		return errHangs // it would pass for a sign of life
	}
	if t.carry == nil {
		return t.NetworkTransport.InstallSnapshot(id, named(id, target), args, resp, data)
	}
	opened, _ := data.(storage.Opened) // it is, from raft
	stream, err := t.carry(opened.ID, data)
	if err != nil {
		return err
	}
	defer stream.Close()
	larger := *args
	larger.Size += stream.Added()
	return t.NetworkTransport.InstallSnapshot(id, named(id, target), &larger, resp, stream)
}

// EncodePeer implements raft.Transport. raft encodes only this replica's own address, which
// it sends with each call. A voter remembers its candidate by these bytes, and votes again
// for any candidate that sends them in the same term. So they name the replica: another
// replica may have its address by then.
func (raftTransport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(rpc.ReplicaAt(id, string(addr)))
}

// TimeoutNow is raft.Transport's.
func (t raftTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.anew(id, func() error { return t.NetworkTransport.TimeoutNow(id, named(id, target), args, resp) })
}

// anew repeats a call that failed because its peer has closed the connection, until one was
// dialled for it. raft keeps idle connections and does not notice that they end when the peer
// restarts. It does not repeat votes, so a candidate would wait for another election, which
// takes one to two seconds. To repeat one of these calls changes nothing: a vote is given again
// to the same candidate, and a replica that was told to lead takes no second call
// (checkTimeoutNow).
func (t raftTransport) anew(id raft.ServerID, call func() error) error {
	for {
		before := t.dials.to(id)
		err := call()
		if !isClosedByPeer(err) || t.dials.to(id) != before {
			return err
		}
	}
}

// isClosedByPeer reports whether a call failed as its connection ended.
func isClosedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dialCounter counts what raft dials.
type dialCounter struct {
	raft.StreamLayer
	mu struct {
		sync.Mutex
		dials map[string]uint64 // by Raft id
	}
}

// Dial implements raft.StreamLayer, for an address of named.
func (d *dialCounter) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, _, _ := strings.Cut(string(address), "@")
	d.mu.Lock()
	d.mu.dials[id]++
	d.mu.Unlock()
	return d.StreamLayer.Dial(address, timeout)
}

// to returns how often a replica was dialled.
func (d *dialCounter) to(id raft.ServerID) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.dials[string(id)]
}

// named returns an address of the group's configuration that leads to one replica alone.
// It is dialled if the address book does not know the replica's node.
func named(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return rpc.ReplicaAt(id, string(addr))
}

// isHeartbeat tells a call that says no more than that the leader is there.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && args.LeaderCommitIndex == 0
}

var (
	_ raft.Transport   = raftTransport{}
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// SetHeartbeatHandler does nothing, which raft.Transport allows.
func (raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// addressBook gives raft the address of a replica, from that of its node. Of a node
// that is not known raft takes the address in the group's configuration.
type addressBook func(node string) (addr string, known bool)

var _ raft.ServerAddressProvider = addressBook(nil)

func (a addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	addr, known := a(NodeOf(id))
	if !known {
		return "", fmt.Errorf("no address of node %s is known", NodeOf(id))
	}
	return rpc.ReplicaAt(id, addr), nil
}

// newRaftTransport makes the transport of a group, which dials nodes where addrs
// says; nil for the addresses in the group's configuration.
func newRaftTransport(layer raft.StreamLayer, addrs addressBook, heartbeat time.Duration, logger hclog.Logger) raftTransport {
	dials := &dialCounter{StreamLayer: layer}
	dials.mu.dials = map[string]uint64{}
	config := &raft.NetworkTransportConfig{
		Stream: dials,
		Logger: logger,
		// One call at a time to a peer. More is raft's pipeline, which can
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
