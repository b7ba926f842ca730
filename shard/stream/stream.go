// Package stream owns the streams between nodes. A stream is one connection in each direction,
// shared by the appends of all groups and by small calls.
//
// The package never sends anything twice, interprets an append, or waits for a replica. Invariant:
// each append reaches the inbox of the one replica that it names, or fails. If a call fails with
// rpc.ErrNotSent or ErrNoStream, no byte of it left this node.
package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

const (
	// appendBacklogMax bounds the bytes of calls that wait to be written to one node. Further
	// appends use a separate connection of their group.
	appendBacklogMax = 4 << 20
	// AppendTimeoutMax bounds one append between two replicas. A follower answers after it has
	// written the entries to disk, and a disk write may take DiskStallMax.
	AppendTimeoutMax = storage.DiskStallMax
	// streamBufferBytes is the size of one read from a node.
	streamBufferBytes = 64 << 10
)

var (
	// ErrNoStream is returned for a call that the stream does not accept, so that nothing was sent.
	ErrNoStream = errors.New("the call is to travel by itself")
	// ErrLost is returned for calls whose connection ended before their answers came. The
	// other node may have received them.
	ErrLost = errors.New("the connection to the node was lost")
	// errAppendTimeout is returned for a call without an answer within AppendTimeoutMax.
	errAppendTimeout = errors.New("the replica has not answered in time")
	// ErrUnreached is returned for calls to a node that cannot be dialled, or could not be dialled
	// a moment ago. Nothing was sent.
	ErrUnreached = errors.New("the node cannot be reached")
	// errTransportClosed is returned for appends of a group that is closing.
	errTransportClosed = errors.New("the group's transport is closed")
)

// Calls is the part of rpc.Calls that Streams needs.
type Calls interface {
	Reachable(nodeKey string) error
	Call(ctx context.Context, nodeKey, method string, request []byte) ([]byte, error)
	Answer(ctx context.Context, method string, request []byte) ([]byte, error)
}

// Config configures New.
type Config struct {
	Mux *rpc.Mux // the caller's; must outlive the streams
	// Lookup returns the current cluster address of a node.
	Lookup func(nodeKey string) (addr string, ok bool)
	// Calls carries the calls that no stream accepts, and answers calls that arrive on a stream;
	// nil if streams carry only appends.
	Calls Calls
}

// Streams carries the AppendEntries calls of all groups of a node, over one connection in each
// direction between two nodes. Calls that arrive during a write share the next write. Answers share
// writes in the same way. No call waits for another's answer.
//
// Streams sends no call twice. If a connection ends, its calls fail with an unknown outcome, and
// raft makes new calls. So a replica may process the calls of one group in another order than they
// were sent; DESIGN.md proves that Raft allows this.
//
// Streams has two goroutines for each connection, which end with the connection, and one for each
// dial. Close ends them and waits.
type Streams struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc // called by Close
	wg     sync.WaitGroup
	served server

	mu struct { // never held during I/O
		sync.Mutex
		peers  map[string]*peer // by node key
		closed bool
	}
}

// New returns a Streams that accepts connections at once. The caller must close it.
func New(cfg Config) *Streams {
	s := &Streams{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.peers = make(map[string]*peer)
	s.served.init(s)
	cfg.Mux.ServeAppends(&s.served)
	return s
}

// Close ends every connection and waits for all goroutines. Running calls fail.
func (s *Streams) Close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// start runs f in a goroutine for which Close waits. It returns false after Close.
func (s *Streams) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

// Open registers a replica of this node, so that its inbox receives appends. It replaces an
// earlier replica of the same group, which is closing.
func (s *Streams) Open(group uint32, id raft.ServerID) *Inbox { return s.served.open(group, id) }

// Waiting returns the number of appends that wait for this node's replica of a group.
func (s *Streams) Waiting(group uint32) int {
	s.served.mu.RLock()
	defer s.served.mu.RUnlock()
	if r := s.served.mu.replicas[group]; r != nil {
		return len(r.Calls)
	}
	return 0
}

// Leave tells other nodes to send no more calls. It waits, at most rpc.CloseGraceMax, until the
// calls that they have sent are answered. Method calls that arrive meanwhile are refused with
// ErrDraining.
func (s *Streams) Leave() { s.served.leave() }

// Conn returns a connection to a node, and dials the node if necessary. If the node's address is
// unknown, Conn dials the address fallback. After a failed dial, calls fail at once until the next
// dial is due.
func (s *Streams) Conn(node, fallback string, stop <-chan struct{}) (*Conn, error) {
	return s.peer(node).connected(fallback, stop)
}

// peer returns the peer of a node, and creates it if necessary. Few nodes ever leave a cluster, so
// Streams never removes a peer.
func (s *Streams) peer(node string) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.mu.peers[node]
	if p == nil {
		p = &peer{streams: s, node: node}
		s.mu.peers[node] = p
	}
	return p
}

// peer is another node to which this node's groups send appends.
type peer struct {
	streams *Streams
	node    string

	mu struct { // never held during I/O
		sync.Mutex
		conn    *Conn     // nil for none
		dial    *dial     // running; nil for none
		retryAt time.Time // no dial starts earlier, because the last one failed
		backoff time.Duration
		failure error // failure of the last dial
	}
}

// dial is a running dial, for which several calls may wait.
type dial struct {
	done chan struct{} // closed once the fields below are set
	conn *Conn
	err  error
}

// connected implements Streams.Conn for one node.
func (p *peer) connected(fallback string, stop <-chan struct{}) (*Conn, error) {
	p.mu.Lock()
	if c := p.mu.conn; c != nil {
		p.mu.Unlock()
		return c, nil
	}
	d, err := p.dialLocked(fallback)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-d.done:
		return d.conn, d.err
	case <-stop:
		return nil, errTransportClosed
	}
}

// dialLocked returns the running dial, and starts one if there is none. It returns an error while
// the next dial is not due.
func (p *peer) dialLocked(fallback string) (*dial, error) {
	if d := p.mu.dial; d != nil {
		return d, nil
	}
	if time.Now().Before(p.mu.retryAt) {
		return nil, fmt.Errorf("%w: %w", ErrUnreached, p.mu.failure)
	}
	d := &dial{done: make(chan struct{})}
	p.mu.dial = d
	if !p.streams.start(func() { p.connect(d, fallback) }) {
		p.mu.dial = nil
		return nil, errTransportClosed
	}
	return d, nil
}

// connect dials the node and completes d.
func (p *peer) connect(d *dial, fallback string) {
	addr, known := p.streams.cfg.Lookup(p.node)
	if !known {
		addr = fallback
	}
	ctx, cancel := context.WithTimeout(p.streams.ctx, rpc.ConnectTimeout)
	defer cancel()
	conn, err := p.streams.cfg.Mux.Dial(ctx, addr, p.node, rpc.KindAppend, 0)
	if err != nil {
		err = fmt.Errorf("cannot dial node %s: %w", p.node, err)
		d.err = fmt.Errorf("%w: %w", ErrUnreached, err)
	} else {
		d.conn = newConn(p, conn)
	}
	p.mu.Lock()
	p.mu.dial = nil
	if p.mu.conn = d.conn; err != nil {
		p.pauseLocked(err)
	}
	p.mu.Unlock()
	if c := d.conn; c != nil {
		stop := context.AfterFunc(p.streams.ctx, func() { c.fail(net.ErrClosed) })
		if !p.streams.start(c.writeCalls) || !p.streams.start(func() { defer stop(); c.readAnswers() }) {
			c.fail(net.ErrClosed)
		}
	}
	close(d.done)
}

// pauseLocked delays the next dial, longer after each failure.
func (p *peer) pauseLocked(failure error) {
	p.mu.backoff = min(max(2*p.mu.backoff, rpc.ConnectBackoffMin), rpc.ConnectBackoffMax)
	p.mu.retryAt, p.mu.failure = time.Now().Add(p.mu.backoff), failure
}

// forget removes a connection that has ended. If no answer ever arrived on the connection, it
// counts as a failed dial, because the node probably refused it.
func (p *peer) forget(c *Conn, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn == c {
		p.mu.conn = nil
	}
	if c.heard.Load() == 0 {
		p.pauseLocked(why)
	} else {
		p.mu.backoff = 0
	}
}
