package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// refusalLogEvery is how often a layer logs that it refused connections that were
// meant for another replica of its group. Whoever makes them tries again every second.
const refusalLogEvery = 10 * time.Second

// ErrOtherReplica is why a connection is refused that is meant for a replica of this
// group that was here before, or that is to be.
var ErrOtherReplica = errors.New("it is for another replica of the group, not for this one")

// muxLayer is one group's part of a Mux. It remembers every connection of the
// group that is open, because raft's transport leaves both those it accepted
// and those in its pool open when it is closed.
type muxLayer struct {
	mux     *Mux
	group   uint32
	id      raft.ServerID // of the replica; connections for another are refused
	accepts chan net.Conn // handed over by the mux; at most acceptQueueMax
	ctx     context.Context
	cancel  context.CancelFunc // by Close

	mu struct {
		sync.Mutex
		conns map[*muxConn]struct{}
	}
	refusalLogged time.Time // guarded by the Mux's lock
}

var _ raft.StreamLayer = (*muxLayer)(nil)

func newMuxLayer(mux *Mux, group uint32, id raft.ServerID) *muxLayer {
	l := &muxLayer{mux: mux, group: group, id: id, accepts: make(chan net.Conn, acceptQueueMax)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.mu.conns = make(map[*muxConn]struct{})
	return l
}

// muxConn is a connection that its layer can close.
type muxConn struct {
	net.Conn
	layer *muxLayer
}

// Read ends as a connection does that its peer has closed once the layer is
// closed, so that raft does not report every one of them.
func (c *muxConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.layer.ctx.Err() != nil {
		err = io.EOF
	}
	return n, err
}

func (c *muxConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.mu.conns, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}

// keep makes conn one of the layer's. It fails after Close.
func (l *muxLayer) keep(conn net.Conn) (*muxConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, fmt.Errorf("group %d is closed: %w", l.group, net.ErrClosed)
	}
	c := &muxConn{Conn: conn, layer: l}
	l.mu.conns[c] = struct{}{}
	return c, nil
}

// Offer hands a connection over, or fails without closing it.
func (l *muxLayer) Offer(conn net.Conn) error {
	c, err := l.keep(conn)
	if err != nil {
		return err
	}
	select {
	case l.accepts <- &servedConn{muxConn: c}:
		return nil
	default:
		c.Close()
		return fmt.Errorf("group %d has not taken the %d before it", l.group, acceptQueueMax)
	}
}

// Accept is net.Listener's.
func (l *muxLayer) Accept() (net.Conn, error) {
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	select {
	case conn := <-l.accepts:
		return conn, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Addr is net.Listener's: the address that peers dial.
func (l *muxLayer) Addr() net.Addr { return l.mux.addr }

// Close closes every connection of the group, accepted and dialled, and makes
// every call that waits return.
func (l *muxLayer) Close() error {
	l.mu.Lock()
	l.cancel()
	conns := l.mu.conns
	l.mu.conns = make(map[*muxConn]struct{})
	l.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
	l.mux.detach(l)
	return nil
}

// refuseOther returns the error for a connection that is meant for another replica of
// the group. It is a warning once in refusalLogEvery: a replica that was deleted is
// still called by members that were cut off when it left. The caller holds the Mux's
// lock.
func (l *muxLayer) refuseOther() error {
	err := fmt.Errorf("group %d: %w, which is %s", l.group, ErrOtherReplica, l.id)
	if time.Since(l.refusalLogged) < refusalLogEvery {
		return fmt.Errorf("%w: %w", ErrEarly, err)
	}
	l.refusalLogged = time.Now()
	return err
}

// ReplicaAt returns an address that the layer dials for one replica alone. No Raft id
// has an @ in it.
func ReplicaAt(id raft.ServerID, addr string) raft.ServerAddress {
	return raft.ServerAddress(string(id) + "@" + addr)
}

// Dial implements raft.StreamLayer: it connects to the same group on another node. An
// address of ReplicaAt leads only to that replica, any other to whichever replica is there.
func (l *muxLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	id, addr, named := strings.Cut(string(address), "@")
	if !named {
		id, addr = "", id
	}
	conn, err := l.mux.Dial(ctx, addr, id, kindRaft, l.group)
	if err != nil {
		return nil, fmt.Errorf("cannot dial group %d: %w", l.group, err)
	}
	c, err := l.keep(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}
