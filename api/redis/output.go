package redis

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// sendBytes is how much output is collected before it is sent, even if the pipeline
	// has more replies.
	sendBytes = 64 << 10
	// keepBytesMax bounds the output buffer that is kept for the next pipeline.
	keepBytesMax = 256 << 10
	// stallTimeout is how long a client that does not read delays its own commands. A client may
	// write a long pipeline before it reads. If the server waited until such a client reads, each
	// would wait for the other.
	stallTimeout = time.Second
)

var errOutputFull = errors.New("the client does not read its replies")

// output sends a connection's replies: on the connection's goroutine while the client
// reads, otherwise on a sender goroutine with a bounded queue.
type output struct {
	conn   net.Conn
	server *Server
	buf    []byte    // replies that were not sent or queued yet
	until  time.Time // the current write deadline; owned by the connection's goroutine
	// unknown is set for a client that has not authenticated: its replies may not wait in the
	// queue.
	unknown bool

	mu struct {
		sync.Mutex
		sending bool   // a sender goroutine runs; only it writes to conn
		waiting []byte // what the sender sends next; reserved from the server's budget
		err     error  // why no more can be sent
		done    chan struct{}
	}
}

// send sends or queues all replies. It returns an error if the client cannot receive them.
func (o *output) send() error {
	if len(o.buf) == 0 {
		return nil
	}
	o.server.metrics.sent.Add(float64(len(o.buf)))
	defer func() {
		if o.buf = o.buf[:0]; cap(o.buf) > keepBytesMax {
			o.buf = nil
		}
	}()
	if sending, err := o.enqueue(o.buf); sending || err != nil {
		return err
	}
	// The deadline is always between a half and the whole of stallTimeout away, so that send sets
	// it rarely.
	if now := time.Now(); o.until.Sub(now) < stallTimeout/2 {
		o.until = now.Add(stallTimeout)
		if err := o.conn.SetWriteDeadline(o.until); err != nil {
			return err
		}
	}
	n, err := o.conn.Write(o.buf)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return o.stall(o.buf[n:])
}

// enqueue adds replies to the queue of a running sender, and reports whether there is one.
func (o *output) enqueue(replies []byte) (sending bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.mu.sending {
		return false, o.mu.err
	}
	return true, o.waitLocked(replies)
}

// waitLocked adds to the queue, or closes the connection if the queue is too large.
func (o *output) waitLocked(replies []byte) error {
	cfg := &o.server.cfg
	if o.unknown || len(o.mu.waiting)+len(replies) > cfg.OutputBytesMax || !o.server.large.acquire(len(replies)) {
		o.mu.err = errOutputFull
		o.server.metrics.outputFull.Inc()
		_ = o.conn.Close() // makes the sender's write fail
		return o.mu.err
	}
	o.mu.waiting = append(o.mu.waiting, replies...)
	return nil
}

// stall starts a sender for output that the client did not accept in time.
func (o *output) stall(rest []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.waitLocked(rest); err != nil {
		return err
	}
	o.mu.sending, o.mu.done = true, make(chan struct{})
	o.until = time.Time{}
	o.server.running.Go(o.run) // ends when all is sent, or by its deadline
	return nil
}

// run sends the queue until it is empty.
func (o *output) run() {
	var chunk []byte
	for {
		o.mu.Lock()
		o.server.large.release(len(chunk))
		if len(o.mu.waiting) == 0 || o.mu.err != nil {
			o.mu.sending = false
			close(o.mu.done)
			o.mu.Unlock()
			return
		}
		chunk, o.mu.waiting = o.mu.waiting, nil
		o.mu.Unlock()
		err := o.conn.SetWriteDeadline(time.Now().Add(o.server.cfg.WriteTimeout))
		if err == nil {
			_, err = o.conn.Write(chunk)
		}
		if err != nil {
			_ = o.conn.Close()
			o.mu.Lock()
			o.mu.err = err
			o.mu.Unlock()
		}
	}
}

// drain waits for a running sender, which ends by its deadline.
func (o *output) drain() {
	o.mu.Lock()
	sending, done := o.mu.sending, o.mu.done
	o.mu.Unlock()
	if sending {
		<-done
	}
}

// release releases the budget after the last send.
func (o *output) release() {
	o.drain()
	o.server.large.release(len(o.mu.waiting))
	o.mu.waiting = nil
}
