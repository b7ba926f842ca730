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

// refusalLogEvery is the interval at which a layer logs that it refuses connections for another
// replica of its group. A dialling replica retries every second.
const refusalLogEvery = 10 * time.Second

// ErrOtherReplica is returned for a connection meant for an earlier or later replica of the group
// on this node.
var ErrOtherReplica = errors.New("it is for another replica of the group, not for this one")

// muxLayer is the part of a Mux for one receiver: a group's replica, or the server of calls. It
// records the receiver's open connections and closes them, because raft's transport leaves
// accepted and pooled connections open when it closes.
type muxLayer struct {
	mux     *Mux
	group   uint32
	id      raft.ServerID // Raft id of the replica; connections for other replicas are refused. "" for calls
	accepts chan *muxConn // connections from the Mux; at most acceptQueueMax
	ctx     context.Context
	cancel  context.CancelFunc // called by Close

	mu struct {
		sync.Mutex
		conns map[*muxConn]struct{}
	}
	refusalLogged time.Time // guarded by the Mux's lock
}

var _ raft.StreamLayer = (*muxLayer)(nil)

func newMuxLayer(mux *Mux, group uint32, id raft.ServerID) *muxLayer {
	l := &muxLayer{mux: mux, group: group, id: id, accepts: make(chan *muxConn, acceptQueueMax)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.mu.conns = make(map[*muxConn]struct{})
	return l
}

// muxConn is a connection that its layer can close.
type muxConn struct {
	net.Conn
	layer *muxLayer
}

// Read returns io.EOF once the layer is closed, as if the peer had closed the connection. Otherwise
// raft would log an error for each connection.
func (c *muxConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.layer.ctx.Err() != nil {
		err = io.EOF
	}
	return n, err
}

func (c *muxConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// forget removes the connection from its layer.
func (c *muxConn) forget() {
	c.layer.mu.Lock()
	defer c.layer.mu.Unlock()
	delete(c.layer.mu.conns, c)
}

// keep registers conn with the layer. It fails after Close.
func (l *muxLayer) keep(conn net.Conn) (*muxConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	c := &muxConn{Conn: conn, layer: l}
	l.mu.conns[c] = struct{}{}
	return c, nil
}

// Offer implements Receiver: it queues a connection for Accept.
func (l *muxLayer) Offer(conn net.Conn) error {
	c, err := l.keep(conn)
	if err != nil {
		return err
	}
	select {
	case l.accepts <- c:
		return nil
	default:
		c.forget()
		return fmt.Errorf("the %d before it wait to be accepted", acceptQueueMax)
	}
}

// Accept implements net.Listener.
func (l *muxLayer) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, err
	}
	return &servedConn{muxConn: c}, nil
}

func (l *muxLayer) accept() (*muxConn, error) {
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

// callLayer is the part of a Mux on which other nodes call this one. It belongs to no group, and
// owns a connection until Accept has returned it.
type callLayer struct{ *muxLayer }

// Accept implements net.Listener.
func (l callLayer) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, err
	}
	c.forget()
	return c.Conn, nil
}

// Addr implements net.Listener: it returns the address that peers dial.
func (l *muxLayer) Addr() net.Addr { return l.mux.addr }

// Close closes every connection of the group, accepted and dialled, and wakes every blocked call.
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

// refuseOther returns the error for a connection meant for another replica of the group. Members
// that were cut off when a replica left keep calling that replica. So the error makes the caller
// log a warning only once in refusalLogEvery. The caller holds the Mux's lock.
func (l *muxLayer) refuseOther() error {
	err := fmt.Errorf("group %d: %w, which is %s", l.group, ErrOtherReplica, l.id)
	if time.Since(l.refusalLogged) < refusalLogEvery {
		return fmt.Errorf("%w: %w", ErrEarly, err)
	}
	l.refusalLogged = time.Now()
	return err
}

// ReplicaAt returns an address for Dial that reaches only the replica with the given id. No Raft id
// contains an "@".
func ReplicaAt(id raft.ServerID, addr string) raft.ServerAddress {
	return raft.ServerAddress(string(id) + "@" + addr)
}

// Dial implements raft.StreamLayer: it connects to the same group on another node. An address made
// by ReplicaAt reaches only that replica. Any other address reaches the group's current replica on
// that node.
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
