package shard

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

// muxLayer is one group's part of a Mux. It remembers every connection of the
// group that is open, because raft's transport leaves both those it accepted
// and those in its pool open when it is closed.
type muxLayer struct {
	mux     *Mux
	group   uint32
	accepts chan net.Conn // handed over by the mux; at most acceptQueueMax
	ctx     context.Context
	cancel  context.CancelFunc // by Close

	mu struct {
		sync.Mutex
		conns map[*muxConn]struct{}
	}
}

var _ raft.StreamLayer = (*muxLayer)(nil)

func newMuxLayer(mux *Mux, group uint32) *muxLayer {
	l := &muxLayer{mux: mux, group: group, accepts: make(chan net.Conn, acceptQueueMax)}
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

// offer hands a connection over, or fails without closing it.
func (l *muxLayer) offer(conn net.Conn) error {
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

// nodeAt is an address as the layer dials it: for one node alone. No key of a node
// has an @ in it.
func nodeAt(node, addr string) raft.ServerAddress { return raft.ServerAddress(node + "@" + addr) }

// Dial is raft.StreamLayer's: it connects to the same group on another node. An
// address of nodeAt leads to that node or nowhere, any other to whoever is there.
func (l *muxLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	node, addr, named := strings.Cut(string(address), "@")
	if !named {
		node, addr = "", node
	}
	conn, err := l.mux.dial(ctx, addr, node, kindRaft, l.group)
	if err != nil {
		return nil, fmt.Errorf("cannot dial group %d: %w", l.group, err)
	}
	c, err := l.keep(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}
