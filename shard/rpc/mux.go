// Package rpc connects the nodes of a cluster. Mux is the cluster port that all groups of a node
// share; BootstrapServer is the port of a node without a cluster. Calls carries bytes, and Batcher
// batches questions to one node. The package also defines the errors of calls and their codes.
//
// It never interprets a body, never retries a call that a handler may have seen, and knows nothing
// of a group but its number. Invariant: it returns ErrNotSent only if no byte of a request left
// this node, so that the caller may send the request elsewhere.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/internal/scarce"
)

const (
	// prefaceTimeout bounds the wait for a peer's preface. It allows for many round trips, but soon
	// frees the slot of a connection that sends nothing.
	prefaceTimeout = 5 * time.Second
	// prefaceConnsMax bounds the connections whose preface has not arrived. A peer sends its
	// preface at once, so further such connections are probably not from peers. The Mux closes
	// them.
	prefaceConnsMax = 128
	// acceptQueueMax bounds the connections that wait until a group, or the server of calls,
	// accepts them. Normally a connection is accepted at once. If too many wait, the Mux closes
	// further ones, and the peers dial again.
	acceptQueueMax = 16
	// acceptRetryDelay is the pause after a failed accept. Accepts usually fail for lack of file
	// descriptors.
	acceptRetryDelay = 50 * time.Millisecond
)

// MuxConfig configures ListenMux.
type MuxConfig struct {
	Addr      string       // address to listen on, host:port
	Listener  net.Listener // used instead of Addr if set; Close closes it
	Advertise string       // the address that peers dial, host:port; "" for the listening address
	ClusterID [16]byte
	NodeKey   string // key of this node: connections meant for another node are refused; "" accepts all
	// ClusterName is this node's --cluster-name; "" for none. Connections from nodes whose name
	// does not agree with it are refused: see ClustersAgree.
	ClusterName string
	Dial        DialPeer     // nil for TCP
	Logger      *slog.Logger // nil discards all messages
}

// DialPeer connects to the node at an address, host:port. target is the key of the node or the Raft
// id of one of its replicas, or "" if only the address is known. A returned connection must reach
// that node. ctx bounds only the dial.
type DialPeer = func(ctx context.Context, address, target string) (net.Conn, error)

func dialTCP(ctx context.Context, address, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// Mux is a node's cluster port: one TCP listener for all its groups and for the calls of other
// nodes. It reads each connection's preface and passes the connection to its receiver. It closes a
// connection of another cluster or version, or for an unknown group. It never reads a byte after
// the preface. It is safe for concurrent use.
type Mux struct {
	cfg      MuxConfig
	addr     net.Addr // the address that peers dial
	listener net.Listener
	calls    callLayer
	prefaces chan struct{}  // a token for each connection whose preface has not arrived
	wg       sync.WaitGroup // goroutines: serve, and receive for each connection whose preface has not arrived
	done     chan struct{}
	failures PeerFailures // failures of raft's connections to peers
	limit    program.LogLimiter

	mu struct { // never held during I/O
		sync.Mutex
		layers  map[uint32]*muxLayer
		appends Receiver              // receives the connections of KindAppend; nil for none
		waiting map[net.Conn]struct{} // connections whose preface has not arrived
		closed  bool
	}
}

// ListenMux starts to listen. Close stops it.
func ListenMux(cfg MuxConfig) (*Mux, error) {
	listener := cfg.Listener
	if listener == nil {
		var listen net.ListenConfig
		var err error
		if listener, err = listen.Listen(context.Background(), "tcp", cfg.Addr); err != nil {
			return nil, fmt.Errorf("cannot listen on the cluster address: %w", err)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mux{
		cfg:      cfg,
		addr:     listener.Addr(),
		listener: listener,
		prefaces: make(chan struct{}, prefaceConnsMax),
		done:     make(chan struct{}),
	}
	if cfg.Advertise != "" {
		m.addr = dialledAddr(cfg.Advertise)
	}
	m.calls = callLayer{newMuxLayer(m, 0, "")}
	m.mu.layers = make(map[uint32]*muxLayer)
	m.mu.waiting = make(map[net.Conn]struct{})
	m.wg.Add(1)
	go m.serve()
	return m, nil
}

// dialledAddr is the address that peers dial; it may have a host name.
type dialledAddr string

func (dialledAddr) Network() string  { return "tcp" }
func (a dialledAddr) String() string { return string(a) }

// LimitedBy returns logger with the node's rate limit, for messages that many groups or
// connections can log at once.
func (m *Mux) LimitedBy(logger *slog.Logger) *slog.Logger { return m.limit.Logger(logger) }

// Failures returns the record of unreachable peers.
func (m *Mux) Failures() *PeerFailures { return &m.failures }

// Logger returns the configured logger.
func (m *Mux) Logger() *slog.Logger { return m.cfg.Logger }

// Limited returns the configured logger with the node's rate limit.
func (m *Mux) Limited() *slog.Logger { return m.limit.Logger(m.cfg.Logger) }

// Addr returns the address that peers dial.
func (m *Mux) Addr() net.Addr { return m.addr }

// Layer returns the stream layer of a group's replica, which accepts only connections meant for
// this Raft id. The replica owns the layer, and must close it before the group gets another one.
// Layer returns an error if the group already has a layer, or after Close.
func (m *Mux) Layer(group uint32, id raft.ServerID) (raft.StreamLayer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil, fmt.Errorf("cannot attach group %d to the cluster port: %w", group, net.ErrClosed)
	}
	if m.mu.layers[group] != nil {
		return nil, fmt.Errorf("cannot attach group %d to the cluster port: it is attached", group)
	}
	layer := newMuxLayer(m, group, id)
	m.mu.layers[group] = layer
	return layer, nil
}

// Calls returns the listener for connections on which other nodes call this one. It always returns
// the same listener. The caller owns the accepted connections.
func (m *Mux) Calls() net.Listener { return m.calls }

// ServeAppends passes later connections of kind KindAppend to r.
func (m *Mux) ServeAppends(r Receiver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.appends = r
}

// Close stops listening, closes every connection and layer, and waits for the goroutines of the
// Mux. Close the groups and the server of calls first, because they do not stop when the port
// closes.
func (m *Mux) Close() error {
	m.mu.Lock()
	if m.mu.closed {
		m.mu.Unlock()
		m.wg.Wait()
		return nil
	}
	m.mu.closed = true
	close(m.done)
	var layers []*muxLayer
	for _, l := range m.mu.layers {
		layers = append(layers, l)
	}
	for conn := range m.mu.waiting {
		conn.Close()
	}
	m.mu.Unlock()

	err := m.listener.Close()
	for _, l := range layers {
		l.Close()
	}
	m.calls.Close()
	m.wg.Wait()
	if err != nil {
		return fmt.Errorf("cannot close the cluster port: %w", err)
	}
	return nil
}

// serve accepts connections. ListenMux starts it; Close stops it and waits.
func (m *Mux) serve() {
	defer m.wg.Done()
	for {
		conn, err := m.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			m.Limited().Warn("cannot accept a cluster connection", "err", err)
			select {
			case <-time.After(acceptRetryDelay):
			case <-m.done:
				return
			}
			continue
		}
		if _, peers := scarce.Bounds(); scarce.Descriptor(conn) >= peers {
			m.refuse(conn, errors.New("the other file descriptors are kept for the node's own files"))
			continue
		}
		select {
		case m.prefaces <- struct{}{}:
			m.wg.Add(1)
			go m.receive(conn)
		default:
			m.refuse(conn, errors.New("too many connections have not sent their preface"))
		}
	}
}

// receive reads one connection's preface and passes the connection on. serve starts it. To stop it,
// Close closes the connection, and waits.
func (m *Mux) receive(conn net.Conn) {
	defer m.wg.Done()
	defer func() { <-m.prefaces }()
	if !m.wait(conn) {
		conn.Close()
		return
	}
	p, err := m.readPreface(conn)
	to, err := m.finish(conn, p, err)
	if err == nil {
		err = to.Offer(conn)
	}
	if err != nil {
		m.refuse(conn, err)
	}
}

// Receiver accepts connections of one kind. If Offer fails, the caller must close the connection.
type Receiver interface {
	Offer(conn net.Conn) error
}

// wait registers a connection whose preface has not arrived, so that Close closes it. It returns
// false after Close.
func (m *Mux) wait(conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.closed {
		m.mu.waiting[conn] = struct{}{}
	}
	return !m.mu.closed
}

// finish undoes wait and returns the connection's receiver. If err is not nil, finish returns err.
func (m *Mux) finish(conn net.Conn, p preface, err error) (Receiver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.waiting, conn)
	switch {
	case err != nil:
		return nil, err
	case m.mu.closed:
		return nil, net.ErrClosed
	case p.kind == kindCall:
		return m.calls, nil
	case p.kind == KindAppend && m.mu.appends == nil:
		return nil, fmt.Errorf("%w: streams of appends are not taken yet", ErrEarly)
	case p.kind == KindAppend:
		return m.mu.appends, nil
	}
	layer := m.mu.layers[p.group]
	switch {
	case layer == nil:
		return nil, fmt.Errorf("%w: group %d is not here", ErrEarly, p.group)
	case p.to != 0 && p.to != Addressee(string(layer.id)):
		return nil, layer.refuseOther()
	}
	return layer, nil
}

func (m *Mux) readPreface(conn net.Conn) (preface, error) {
	if err := conn.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		return preface{}, err
	}
	var room [prefaceBytes + ClusterNameBytesMax]byte
	b := room[:prefaceBytes]
	if _, err := io.ReadFull(conn, b); err != nil {
		return preface{}, fmt.Errorf("cannot read its preface: %w", err)
	}
	n, err := prefaceLen(b)
	if err != nil {
		return preface{}, err
	}
	b = room[:n]
	if _, err := io.ReadFull(conn, b[prefaceBytes:]); err != nil {
		return preface{}, fmt.Errorf("cannot read its preface: %w", err)
	}
	p, err := parsePreface(b)
	if err != nil {
		return preface{}, err
	}
	if p.kind != kindRaft && (p.kind != kindCall && p.kind != KindAppend || p.group != 0) {
		return preface{}, fmt.Errorf("unknown kind %d of group %d", p.kind, p.group)
	}
	if err := m.cfg.checkCluster(&p); err != nil {
		return preface{}, err
	}
	if own := Addressee(m.cfg.NodeKey); p.kind != kindRaft && p.to != 0 && own != 0 && p.to != own {
		return preface{}, fmt.Errorf("%w: it is for another node, which was here or is to be", ErrEarly)
	}
	return p, conn.SetReadDeadline(time.Time{})
}

// ErrEarly is returned for a connection that is refused in normal operation, because a node has not
// yet joined the cluster or opened a group, or has closed the group. If it persists, the dialling
// node logs a warning.
var ErrEarly = errors.New("nobody is here for it")

func (m *Mux) refuse(conn net.Conn, err error) {
	conn.Close()
	level, text := slog.LevelWarn, "refused a cluster connection"
	switch {
	case errors.Is(err, ErrEarly):
		level = slog.LevelDebug
	case errors.Is(err, errOtherCluster):
		text = "refused a connection from a node of another cluster" // the same text for all clusters, because the rate limit counts each text separately
	}
	m.Limited().Log(context.Background(), level, text, "from", conn.RemoteAddr().String(), "reason", err.Error())
}

// Dial connects to another node's cluster port and sends the preface with the kind of the
// connection and the addressee. target is the Raft id of a replica or, for other kinds, the key of
// a node; "" means any. ctx bounds only the dial and the sending of the preface.
func (m *Mux) Dial(ctx context.Context, address, target string, kind uint8, group uint32) (net.Conn, error) {
	dial := m.cfg.Dial
	if dial == nil {
		dial = dialTCP
	}
	conn, err := dial(ctx, address, target)
	if err != nil {
		return nil, err
	}
	p := preface{kind: kind, cluster: m.cfg.ClusterID, group: group, to: Addressee(target), name: m.cfg.ClusterName}
	if err := m.sendPreface(ctx, conn, p); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot send the preface to %s: %w", address, err), conn.Close())
	}
	return conn, nil
}

func (m *Mux) sendPreface(ctx context.Context, conn net.Conn, p preface) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(appendPreface(nil, p)); err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
}

// detach removes a closed layer.
func (m *Mux) detach(layer *muxLayer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.layers[layer.group] == layer {
		delete(m.mu.layers, layer.group)
	}
}
