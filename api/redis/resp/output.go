package resp

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// SendBytes is the size at which output is sent, even if the pipeline has more replies.
	SendBytes = 64 << 10
	// KeepBytesMax bounds the memory of the output buffer that is kept for the next pipeline.
	KeepBytesMax = 256 << 10
	// stallTimeout is the time for which Send waits for a client that does not read. A client may
	// write a long pipeline before it reads. If the server then waited without a bound, server and
	// client would wait for each other forever.
	stallTimeout = time.Second
)

var errOutputFull = errors.New("the client does not read its replies")

// Output sends a connection's replies. While the client reads them, Output sends them on the
// connection's goroutine. Otherwise it adds them to a bounded queue, which a sender goroutine
// sends.
type Output struct {
	Buf []byte // replies that were not sent or queued yet
	// Unknown is set for a client that has not authenticated: its replies may not wait in the
	// queue.
	Unknown bool

	conn   net.Conn
	shared *Shared
	until  time.Time // the current write deadline; owned by the connection's goroutine

	mu struct {
		sync.Mutex
		sending bool   // a sender goroutine runs; only it writes to conn
		waiting []byte // replies that the sender sends next; their memory is reserved from the shared budget
		err     error  // the reason why nothing more can be sent
		done    chan struct{}
	}
}

// NewOutput returns the output of a connection.
func NewOutput(shared *Shared, conn net.Conn) Output { return Output{shared: shared, conn: conn} }

// Send sends or queues all replies. It returns an error if the client cannot receive them.
func (o *Output) Send() error {
	if len(o.Buf) == 0 {
		return nil
	}
	o.shared.Sent.Add(float64(len(o.Buf)))
	defer func() {
		if o.Buf = o.Buf[:0]; cap(o.Buf) > KeepBytesMax {
			o.Buf = nil
		}
	}()
	if sending, err := o.enqueue(o.Buf); sending || err != nil {
		return err
	}
	// Set the deadline only if less than stallTimeout/2 remains, so that Send rarely sets it.
	if now := time.Now(); o.until.Sub(now) < stallTimeout/2 {
		o.until = now.Add(stallTimeout)
		if err := o.conn.SetWriteDeadline(o.until); err != nil {
			return err
		}
	}
	n, err := o.conn.Write(o.Buf)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return o.stall(o.Buf[n:])
}

// enqueue adds replies to the queue of a running sender, and reports whether there is one.
func (o *Output) enqueue(replies []byte) (sending bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.mu.sending {
		return false, o.mu.err
	}
	return true, o.waitLocked(replies)
}

// waitLocked adds to the queue, or closes the connection if the queue may not grow.
func (o *Output) waitLocked(replies []byte) error {
	if o.Unknown || len(o.mu.waiting)+len(replies) > o.shared.OutputBytesMax || !o.shared.Memory.Acquire(len(replies)) {
		o.mu.err = errOutputFull
		o.shared.OutputFull.Inc()
		_ = o.conn.Close() // the sender's write fails then
		return o.mu.err
	}
	o.mu.waiting = append(o.mu.waiting, replies...)
	return nil
}

// stall starts a sender for output that the client did not accept in time.
func (o *Output) stall(rest []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.waitLocked(rest); err != nil {
		return err
	}
	o.mu.sending, o.mu.done = true, make(chan struct{})
	o.until = time.Time{}
	o.shared.Running.Go(o.run) // ends when the queue is sent, or at the write deadline
	return nil
}

// run sends the queue until it is empty.
func (o *Output) run() {
	var chunk []byte
	for {
		o.mu.Lock()
		o.shared.Memory.Release(len(chunk))
		if len(o.mu.waiting) == 0 || o.mu.err != nil {
			o.mu.sending = false
			close(o.mu.done)
			o.mu.Unlock()
			return
		}
		chunk, o.mu.waiting = o.mu.waiting, nil
		o.mu.Unlock()
		err := o.conn.SetWriteDeadline(time.Now().Add(o.shared.WriteTimeout))
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

// Drain waits until a running sender ends, at its write deadline at the latest.
func (o *Output) Drain() {
	o.mu.Lock()
	sending, done := o.mu.sending, o.mu.done
	o.mu.Unlock()
	if sending {
		<-done
	}
}

// Release frees the memory that the output has reserved.
func (o *Output) Release() {
	o.Drain()
	o.shared.Memory.Release(len(o.mu.waiting))
	o.mu.waiting = nil
}
