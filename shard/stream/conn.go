package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Conn is a connection on which this node's groups send appends to another node.
type Conn struct {
	peer  *peer
	conn  net.Conn
	heard atomic.Int64  // how many answers came
	serve atomic.Bool   // the node has said that it serves the stream
	wake  chan struct{} // one token: there is something to write
	ended chan struct{} // closed by fail

	mu struct { // never held during I/O
		sync.Mutex
		out    []byte           // calls to be written
		calls  map[uint64]*call // without an answer, by id
		lastID uint64
		sentID uint64 // of the calls that were given to the network the last, or 0
		leave  bool   // the node is closing: no more calls
		err    error  // why it has ended; nil while it has not
		// silentSince is when the first of the calls began that ended at their deadlines
		// while heard was silentHeard.
		silentSince time.Time
		silentHeard int64
	}
}

// call is a call without an answer yet.
type call struct {
	done   chan struct{} // closed when the rest is set
	answer Answer
	err    error // there is none, for this reason
	unsent bool  // and nothing of the call was given to the network
}

func newConn(p *peer, conn net.Conn) *Conn {
	c := &Conn{peer: p, conn: conn, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	c.mu.calls = make(map[uint64]*call)
	return c
}

// Append sends an append and waits for its answer, for AppendTimeoutMax at most. The request is
// read before it returns and not after. ErrNoStream means that it was not sent and has
// no room here.
func (c *Conn) Append(group uint32, to uint64, args *raft.AppendEntriesRequest, stop <-chan struct{}) (Answer, error) {
	heard := c.heard.Load()
	id, call, err := c.enqueue(group, to, args)
	if err != nil {
		return Answer{}, err
	}
	timeout := time.NewTimer(AppendTimeoutMax)
	defer timeout.Stop()
	select {
	case <-call.done:
		if call.err != nil {
			return Answer{}, call.err
		}
		return call.answer, call.answer.err
	case <-stop:
		err = errTransportClosed
	case <-timeout.C:
		err = errAppendTimeout
	}
	c.giveUp(id)
	if errors.Is(err, errAppendTimeout) && c.heard.Load() == heard {
		c.fail(err) // nothing came for any group
	}
	return Answer{}, err
}

// giveUp forgets a call: what answers it from here on is nobody's.
func (c *Conn) giveUp(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.calls, id)
}

func (c *Conn) enqueue(group uint32, to uint64, args *raft.AppendEntriesRequest) (uint64, *call, error) {
	return c.put(func(dst []byte, id uint64) []byte { return appendAppend(dst, id, group, to, args) })
}

// put has what write appends written, as a call that waits for its answer.
func (c *Conn) put(write func(dst []byte, id uint64) []byte) (uint64, *call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		return 0, nil, c.mu.err
	}
	if len(c.mu.out) > appendBacklogMax || c.mu.leave {
		return 0, nil, ErrNoStream
	}
	c.mu.lastID++
	id, call := c.mu.lastID, &call{done: make(chan struct{})}
	c.mu.out = appendMessage(c.mu.out, func(dst []byte) []byte { return write(dst, id) })
	c.mu.calls[id] = call
	wake(c.wake)
	return id, call, nil
}

// wake leaves a token that a goroutine waits for, unless there is one.
func wake(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// writeCalls writes calls until the connection ends, or the other node is closing. That
// one answers what was sent, and closes the connection.
func (c *Conn) writeCalls() {
	err := writeStream(c.conn, c.wake, c.ended, c.take)
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil {
		c.fail(err)
	}
}

// take is writeStream's.
func (c *Conn) take(spare []byte) (out []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, c.mu.out, c.mu.sentID = c.mu.out, spare, c.mu.lastID
	return out, c.mu.leave
}

// writeStream writes what take returns each time that wake has a token, until that was
// the last, ended is closed or a write fails. It gives take the buffer that was written
// before.
func writeStream(conn net.Conn, wake, ended <-chan struct{}, take func(spare []byte) (out []byte, last bool)) error {
	var spare []byte
	for {
		select {
		case <-wake:
		case <-ended:
			return nil
		}
		runtime.Gosched() // whoever runs already adds to this write
		out, last := take(spare[:0])
		if len(out) > 0 {
			if err := conn.SetWriteDeadline(time.Now().Add(AppendTimeoutMax)); err != nil {
				return err
			}
			if _, err := conn.Write(out); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		if spare = out; cap(spare) > streamMessageMax {
			spare = nil // of a burst
		}
	}
}

// readAnswers hands answers to their calls until the connection ends.
func (c *Conn) readAnswers() {
	err := readStream(c.conn, func(message []byte, _ bool) error {
		answer, err := parseAppendAnswer(message)
		if err != nil {
			return err
		}
		if answer.serve {
			c.serve.Store(true)
			return nil
		}
		c.heard.Add(1)
		c.mu.Lock()
		call := c.mu.calls[answer.id]
		delete(c.mu.calls, answer.id)
		if answer.leave {
			c.mu.leave = true
			wake(c.wake)
		}
		c.mu.Unlock()
		if call != nil {
			call.answer = answer
			close(call.done)
		}
		return nil
	})
	c.fail(err)
}

// readStream calls handle with each message, which is handle's, and whether more has
// arrived already. It ends with the connection or an error of handle.
func readStream(conn io.Reader, handle func(message []byte, more bool) error) error {
	r := bufio.NewReaderSize(conn, streamBufferBytes)
	var head [messageHeadBytes]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		n, err := messageBytes(head[:])
		if err != nil {
			return err
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(r, message); err != nil {
			return err
		}
		if err := handle(message, r.Buffered() > 0); err != nil {
			return err
		}
	}
}

// plain returns the connection under TLS, or conn if it has none.
func plain(conn net.Conn) net.Conn {
	if over, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return over.NetConn()
	}
	return conn
}

// fail ends the connection and every call on it.
func (c *Conn) fail(why error) {
	c.mu.Lock()
	if c.mu.err != nil {
		c.mu.Unlock()
		return
	}
	if why == nil {
		why = io.EOF
	}
	lost := fmt.Errorf("%w: %s: %w", ErrLost, c.peer.node, why)
	c.mu.err = lost
	calls, sentID := c.mu.calls, c.mu.sentID
	c.mu.calls, c.mu.out = nil, nil
	c.mu.Unlock()
	if tcp, ok := plain(c.conn).(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a cut network would deliver late what is not sent yet
	}
	c.conn.Close()
	c.peer.forget(c, lost)
	close(c.ended)
	for id, call := range calls {
		call.err, call.unsent = lost, id > sentID
		close(call.done)
	}
}
