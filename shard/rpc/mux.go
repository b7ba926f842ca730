// Package rpc connects the nodes of a cluster: the cluster port that all groups of a node
// share (Mux), calls with answers of bytes (Calls), batches of questions to one node
// (Batcher), the errors of calls and their codes, and the port of a node that has no
// cluster yet (BootstrapServer).
//
// It never reads a body, retries a call that may have been seen, or knows what a group
// is beyond its number. Invariant: ErrNotSent is returned only if no byte of a request
// left this node, so that the caller may send the request elsewhere.
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

	"github.com/countd/countd/internal/lograte"
	"github.com/countd/countd/internal/scarce"
)

const (
	// prefaceTimeout is how long a peer may take for the preface that it
	// sends first: many round trips, and soon over for one that sends none.
	prefaceTimeout = 5 * time.Second
	// prefaceConnsMax bounds the connections that have not said yet whose
	// they are. A peer sends its preface at once, so this many waiting are
	// not peers; more are closed.
	prefaceConnsMax = 128
	// acceptQueueMax bounds the connections that a group, or the server of
	// calls, has been given and not taken. They take them at once; when they do
	// not, their peers are better off dialling again.
	acceptQueueMax = 16
	// acceptRetryDelay is the pause after a failed accept. Nearly always the process has run
	// out of file descriptors then.
	acceptRetryDelay = 50 * time.Millisecond
)

// MuxConfig configures ListenMux.
type MuxConfig struct {
	Addr      string       // to listen on, host:port
	Listener  net.Listener // served in place of Addr when given, and closed by Close
	Advertise string       // what peers dial, host:port; "" for the address listened on
	ClusterID [16]byte
	NodeKey   string // connections that are meant for another node are refused; "" takes all
	// ClusterName is what this node was told that its cluster is named, "" for none.
	// Connections from nodes of another name are refused.
	ClusterName string
	Dial        DialPeer     // nil for TCP
	Logger      *slog.Logger // nil discards
}

// DialPeer connects to the node at an address, host:port. to is the key of the node or the
// Raft id of one of its replicas, or "" if only the address is known. The connection of a
// nil error reaches that node; ctx bounds the call, and nothing after it.
type DialPeer = func(ctx context.Context, address, to string) (net.Conn, error)

func dialTCP(ctx context.Context, address, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// Mux is a node's cluster port: one TCP listener for all its groups, and for
// the calls of other nodes. It reads each connection's preface, hands the
// connection to whom it is for, and closes what is of another cluster, version
// or group. It never reads a byte behind the preface. Safe for concurrent use.
type Mux struct {
	cfg      MuxConfig
	addr     net.Addr // what peers dial
	listener net.Listener
	calls    *callListener
	prefaces chan struct{}  // a token for each connection in its preface
	wg       sync.WaitGroup // serve, and receive for each connection in its preface
	done     chan struct{}
	failures PeerFailures // of raft's connections to peers
	limit    lograte.Limiter

	mu struct { // never held during I/O
		sync.Mutex
		layers  map[uint32]*muxLayer
		appends Receiver              // of streams of appends; nil for none
		waiting map[net.Conn]struct{} // in their preface
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
		calls:    newCallListener(),
		prefaces: make(chan struct{}, prefaceConnsMax),
		done:     make(chan struct{}),
	}
	if cfg.Advertise != "" {
		m.addr = dialledAddr(cfg.Advertise)
	}
	m.calls.addr = m.addr
	m.mu.layers = make(map[uint32]*muxLayer)
	m.mu.waiting = make(map[net.Conn]struct{})
	m.wg.Add(1)
	go m.serve()
	return m, nil
}

// dialledAddr is an address as peers dial it: it may be a name.
type dialledAddr string

func (dialledAddr) Network() string  { return "tcp" }
func (a dialledAddr) String() string { return string(a) }

// LimitedBy returns logger with the node's limit on what each of many groups or
// connections meets.
func (m *Mux) LimitedBy(logger *slog.Logger) *slog.Logger { return m.limit.Logger(logger) }

// Failures returns what is known of failures to reach peers.
func (m *Mux) Failures() *PeerFailures { return &m.failures }

// Logger returns the logger that the Mux was configured with.
func (m *Mux) Logger() *slog.Logger { return m.cfg.Logger }

// Limited logs what each of many groups or connections meets.
func (m *Mux) Limited() *slog.Logger { return m.limit.Logger(m.cfg.Logger) }

// Addr returns the address that peers dial.
func (m *Mux) Addr() net.Addr { return m.addr }

// Layer returns the stream layer of a group's replica: its part of this port, which
// takes connections that are meant for this Raft id alone. The group owns it, and its
// Close makes room for another layer of the same group. It is an error to ask for a
// group that has one, or after Close.
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

// Calls returns the listener of the connections on which other nodes call this
// one, the same each time. Connections that it has handed over are its user's.
func (m *Mux) Calls() net.Listener { return m.calls }

// ServeAppends gives streams of appends to r.
func (m *Mux) ServeAppends(r Receiver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.appends = r
}

// Close stops listening, closes every connection and layer, and waits until
// no goroutine of the Mux is left. The groups and the server of calls are to be
// closed before: theirs would go on and find no port.
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

// serve accepts connections. ListenMux starts it, Close stops and waits for it.
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

// receive reads one connection's preface and hands the connection on. serve
// starts it, Close stops it by closing the connection and waits for it.
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

// Receiver takes connections of one kind. Offer fails without closing the connection.
type Receiver interface {
	Offer(conn net.Conn) error
}

// wait makes Close close the connection; it returns false after Close.
func (m *Mux) wait(conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.closed {
		m.mu.waiting[conn] = struct{}{}
	}
	return !m.mu.closed
}

// finish ends wait and returns whom the connection is for, or err if there was
// one.
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

// ErrEarly is why a connection is refused that may come at any time: a node is
// reached before it has joined the cluster, or opened a group that it is to have,
// or after it has closed one. Who made it tells if that lasts.
var ErrEarly = errors.New("nobody is here for it")

func (m *Mux) refuse(conn net.Conn, err error) {
	conn.Close()
	level, text := slog.LevelWarn, "refused a cluster connection"
	switch {
	case errors.Is(err, ErrEarly):
		level = slog.LevelDebug
	case errors.Is(err, errOtherCluster):
		text = "refused a connection from a node of another cluster" // with a limit of its own
	}
	m.Limited().Log(context.Background(), level, text, "from", conn.RemoteAddr().String(), "reason", err.Error())
}

// Dial connects to another node's cluster port and sends the kind of the connection and the
// addressee: the Raft id of a replica or, for the other kinds, the key of a node; "" accepts
// any. ctx bounds only these two steps.
func (m *Mux) Dial(ctx context.Context, address, to string, kind uint8, group uint32) (net.Conn, error) {
	dial := m.cfg.Dial
	if dial == nil {
		dial = dialTCP
	}
	conn, err := dial(ctx, address, to)
	if err != nil {
		return nil, err
	}
	p := preface{kind: kind, cluster: m.cfg.ClusterID, group: group, to: Addressee(to), name: m.cfg.ClusterName}
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

// detach forgets a layer that was closed.
func (m *Mux) detach(layer *muxLayer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.layers[layer.group] == layer {
		delete(m.mu.layers, layer.group)
	}
}
