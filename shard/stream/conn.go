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
	heard atomic.Int64  // number of answers received
	serve atomic.Bool   // the node has sent its serve message
	wake  chan struct{} // capacity 1; a token means that calls wait to be written
	ended chan struct{} // closed by fail

	mu struct { // never held during I/O
		sync.Mutex
		out    []byte           // calls to write
		calls  map[uint64]*call // unanswered calls, by id
		lastID uint64
		sentID uint64 // the last id passed to the network; 0 for none
		leave  bool   // the other node is closing: send no more calls
		err    error  // why the connection ended; nil before
		// silentSince is the start of the first call that timed out while the count heard was
		// silentHeard.
		silentSince time.Time
		silentHeard int64
	}
}

// call is an unanswered call.
type call struct {
	done   chan struct{} // closed once the fields below are set
	answer Answer
	err    error // why there is no answer
	unsent bool  // no byte of the call was passed to the network
}

func newConn(p *peer, conn net.Conn) *Conn {
	c := &Conn{peer: p, conn: conn, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	c.mu.calls = make(map[uint64]*call)
	return c
}

// Append sends an append and waits for its answer until stop is closed, at most AppendTimeoutMax.
// Append does not use args after it returns. ErrNoStream means that the append was not sent,
// because the stream has no space or the other node is closing.
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
		c.fail(err) // no call of any group was answered meanwhile, so the connection is probably broken
	}
	return Answer{}, err
}

// giveUp removes a call. A later answer is ignored.
func (c *Conn) giveUp(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.calls, id)
}

func (c *Conn) enqueue(group uint32, to uint64, args *raft.AppendEntriesRequest) (uint64, *call, error) {
	return c.put(func(dst []byte, id uint64) []byte { return appendAppend(dst, id, group, to, args) })
}

// put queues a call, whose bytes the function write appends.
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

// wake puts a token into a channel of capacity 1, unless the channel has one.
func wake(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// writeCalls writes calls until the connection ends or the other node is closing. If the other node
// is closing, writeCalls half-closes the connection; that node then answers the pending calls and
// closes the connection.
func (c *Conn) writeCalls() {
	err := writeStream(c.conn, c.wake, c.ended, c.take)
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil {
		c.fail(err)
	}
}

// take returns the calls to write; see writeStream.
func (c *Conn) take(spare []byte) (out []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, c.mu.out, c.mu.sentID = c.mu.out, spare, c.mu.lastID
	return out, c.mu.leave
}

// Each time that the channel wake has a token, writeStream writes the bytes that the function take
// returns. writeStream returns after the last bytes, when the channel ended is closed, or when a
// write fails. It passes the written buffer to the next call of take for reuse.
func writeStream(conn net.Conn, wake, ended <-chan struct{}, take func(spare []byte) (out []byte, last bool)) error {
	var spare []byte
	for {
		select {
		case <-wake:
		case <-ended:
			return nil
		}
		runtime.Gosched() // let callers that are already running join this write
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
			spare = nil // a burst made the buffer too large to keep
		}
	}
}

// readAnswers passes answers to their calls until the connection ends.
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

// readStream calls handle for each message. handle owns the message. The argument more means that
// the next message has already arrived. readStream returns when the connection ends or handle
// returns an error.
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

// plain returns the TCP connection under a TLS connection, or conn itself.
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
		_ = tcp.SetLinger(0) // discard unsent bytes, because a repaired network would deliver them late
	}
	c.conn.Close()
	c.peer.forget(c, lost)
	close(c.ended)
	for id, call := range calls {
		call.err, call.unsent = lost, id > sentID
		close(call.done)
	}
}
