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
	// callsInFlightMax bounds the unanswered calls to one node.
	callsInFlightMax = 1024
	// ConnectTimeout bounds a dial including the handshake: a few round trips.
	ConnectTimeout = 2 * time.Second
	// Calls dials an unreachable node again after ConnectBackoffMin. The pause grows to at most
	// ConnectBackoffMax plus a jitter of a fifth.
	ConnectBackoffMin = 50 * time.Millisecond
	ConnectBackoffMax = 800 * time.Millisecond

	// PingEvery is the interval between checks of a connection. A silent connection is pinged, and
	// closed after PingsMissedMax silent checks. So a frozen or unreachable peer is detected within
	// 5 s, and a peer that is slow for some seconds keeps its connection. After pingsDoubtful
	// silent checks, calls to the peer fail until the peer sends something, because such calls
	// would probably be lost.
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
	// Lookup returns the current cluster address of a node. Many goroutines call it often, so it
	// must not block.
	Lookup func(nodeKey string) (addr string, ok bool)
	// ByAddress means that node keys are addresses: a call reaches the node that has the address
	// now.
	ByAddress bool
	// Calls calls Cut at each check of a node that was silent for too long. Cut closes the other
	// connections to that node; nil if there are none.
	Cut    func(nodeKey string)
	Logger *slog.Logger // nil discards all messages
}

// Calls carries requests and answers between nodes, as bytes, over one connection in each
// direction. Calls never sends a request twice, unless the other node reports that it did not
// process the request.
//
// It has one goroutine for Serve, and one for each node that was called. Close stops them and
// waits.
type Calls struct {
	cfg    CallsConfig
	server *callServer
	ctx    context.Context
	cancel context.CancelFunc // called by Close
	wg     sync.WaitGroup
	serves atomic.Bool // set by Serve: all handlers are registered

	mu struct { // never held during I/O
		sync.Mutex
		peers  map[string]*callPeer
		closed bool
	}
}

// NewCalls returns the calls of a node. Serve starts to answer the calls of other nodes; Close
// ends both directions.
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

// Handle registers the handler of a method. Call it before Serve.
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

// Close lets running handlers answer within CloseGraceMax, then ends the calls to other nodes with
// ErrCallLost. It waits for every handler.
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

// Call calls a method of another node and returns the answer, which the caller owns. The caller
// must never change the request again, even after Call has returned. If ctx has no deadline,
// CallTimeoutMax bounds the call.
//
// An error is an *Error if the other node's handler returned it, and ErrOverloaded or ErrDraining
// if this node refused the call. It is ErrNotSent if no handler can have seen the request, and
// otherwise ErrCallLost. If ctx ended the call, ErrNotSent and ErrCallLost wrap ctx's error.
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

// peer returns the callPeer of a node, and creates it if necessary.
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

// Doubtful reports whether this node refuses calls to another node until that node answers a ping.
func (c *Calls) Doubtful(node string) bool {
	c.mu.Lock()
	p := c.mu.peers[node]
	c.mu.Unlock()
	return p != nil && p.doubtful()
}

// Reachable returns an error if a call would fail at once, because the node is unknown or does not
// answer pings. It also starts to ping the node.
func (c *Calls) Reachable(node string) error {
	p, err := c.peer(node)
	if err == nil && p.doubtful() {
		err = fmt.Errorf("%w: node %s does not answer pings", ErrNotSent, node)
	}
	return err
}

// Answer answers a call that arrived over another connection, within the same bounds. Before Serve
// it refuses the call with ErrNoLeader.
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

// forget removes a node that Lookup no longer knows.
func (c *Calls) forget(p *callPeer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.peers, p.node)
}
