package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/shard/errs"
)

const (
	// callsInFlightMax bounds the calls to one node that have no answer yet.
	callsInFlightMax = 1024
	// ConnectTimeout bounds a dial with the handshake: a few round trips.
	ConnectTimeout = 2 * time.Second
	// A node that cannot be reached is dialled again after ConnectBackoffMin at
	// first, and never later than ConnectBackoffMax and its jitter of a fifth.
	ConnectBackoffMin = 50 * time.Millisecond
	ConnectBackoffMax = 800 * time.Millisecond

	// PingEvery is how often a connection is looked at. One from which nothing
	// came since is pinged, and closed when nothing has come the PingsMissedMax-th
	// time: a peer that is cut off or stands still is found within 5 s, one that is
	// slow for some seconds is not. From the pingsDoubtful-th time on it gets no
	// calls until something comes: they would most likely be lost.
	PingEvery      = time.Second
	pingsDoubtful  = 2
	PingsMissedMax = 4
	// The server pings a client that has sent nothing for serverPingAfter. That happens only
	// after the client has stopped pinging.
	serverPingAfter   = 3 * time.Second
	serverPingTimeout = 2 * time.Second
)

// CallsConfig configures NewCalls.
type CallsConfig struct {
	Mux *Mux // the caller's; must outlive the calls
	// Lookup returns the cluster address of a node now. It is called often, from
	// many goroutines, and must not wait.
	Lookup func(nodeKey string) (addr string, ok bool)
	// ByAddress says that nodes are named by their addresses: a call goes to any node at the
	// address.
	ByAddress bool
	// Cut is called when nothing has come from a node for too long: other connections to
	// it are to be closed too. nil if there are none.
	Cut    func(nodeKey string)
	Logger *slog.Logger // nil discards
}

// Calls carries requests and answers between nodes, as bytes, over one
// connection each way between two nodes. It never sends a request twice, unless
// the other node has said that it has not looked at it.
//
// Its goroutines are serve's, and one for each node that was called; close stops
// and waits for them.
type Calls struct {
	cfg    CallsConfig
	server *callServer
	ctx    context.Context
	cancel context.CancelFunc // by close
	wg     sync.WaitGroup
	serves atomic.Bool // the handlers are set, see Answer

	mu struct { // never held during I/O
		sync.Mutex
		peers  map[string]*callPeer
		closed bool
	}
}

// NewCalls returns the calls of a node. Serve answers those of others; Close ends both.
func NewCalls(cfg CallsConfig) (*Calls, error) {
	if cfg.Mux == nil || cfg.Lookup == nil {
		return nil, errors.New("calls need a Mux and Lookup")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Calls{cfg: cfg, server: newCallServer()}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.peers = make(map[string]*callPeer)
	return c, nil
}

// Handle makes h answer a method. It is to be called before serve.
func (c *Calls) Handle(method string, h Handler) { c.server.handlers[callService+method] = h }

// Serve begins to answer calls.
func (c *Calls) Serve() {
	c.serves.Store(true)
	c.wg.Go(func() {
		if err := c.server.grpc.Serve(c.cfg.Mux.Calls()); err != nil {
			c.cfg.Logger.Error("no longer answering calls of other nodes", "err", err)
		}
	})
}

// Close answers the calls that other nodes have sent, within CloseGraceMax,
// then ends those to other nodes with ErrCallLost. It waits for every handler.
func (c *Calls) Close() {
	c.mu.Lock()
	again := c.mu.closed
	c.mu.closed = true
	c.mu.Unlock()
	if !again {
		c.server.close()
		c.cancel()
	}
	c.wg.Wait()
}

// Call has a method of another node answer a request, and returns the answer,
// which is the caller's. The request is given away: it must not be changed any
// more, not even after call has returned. Without a deadline ctx has one of
// CallTimeoutMax.
//
// An error is a *Error if the other node's handler returned it; ErrOverloaded
// or ErrDraining if this node refused the call; ErrNotSent if no handler can
// have seen the request; and otherwise ErrCallLost: one may have. The context's
// error is in the last two when it was the cause.
func (c *Calls) Call(ctx context.Context, node, method string, request []byte) ([]byte, error) {
	if len(request) > MessageBytesMax {
		return nil, fmt.Errorf("%w: %w: a request of %d bytes", ErrNotSent, ErrTooLarge, len(request))
	}
	p, err := c.peer(node)
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeoutMax)
		defer cancel()
	}
	return p.call(ctx, callService+method, request)
}

// peer returns what is known of a node, made if need be.
func (c *Calls) peer(node string) (*callPeer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errs.ErrDraining
	}
	if p := c.mu.peers[node]; p != nil {
		return p, nil
	}
	if _, known := c.cfg.Lookup(node); !known {
		return nil, fmt.Errorf("%w: node %s is not known", ErrNotSent, node)
	}
	p, err := newCallPeer(c, node)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.mu.peers[node] = p
	c.wg.Go(p.watch)
	return p, nil
}

// Doubtful reports whether calls to a node are refused until it answers a ping.
func (c *Calls) Doubtful(node string) bool {
	c.mu.Lock()
	p := c.mu.peers[node]
	c.mu.Unlock()
	return p != nil && p.doubtful()
}

// Reachable returns the error of a call that is not sent, because the node is not known
// or does not answer pings. From then on the node is pinged.
func (c *Calls) Reachable(node string) error {
	p, err := c.peer(node)
	if err == nil && p.doubtful() {
		err = fmt.Errorf("%w: node %s does not answer pings", ErrNotSent, node)
	}
	return err
}

// Answer answers a call that came over another connection, within the same bounds. Before
// Serve it refuses the call with ErrNoLeader.
func (c *Calls) Answer(ctx context.Context, method string, request []byte) ([]byte, error) {
	if !c.serves.Load() {
		return nil, fmt.Errorf("%w: the node is starting", errs.ErrNoLeader)
	}
	if err := c.server.begin(); err != nil {
		return nil, err
	}
	defer c.server.end()
	return c.server.answer(ctx, callService+method, request)
}

// forget removes a node that is not known any more.
func (c *Calls) forget(p *callPeer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.peers, p.node)
}
