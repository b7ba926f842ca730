package resp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/api/gate"
)

const (
	// readBytesFirst is the first size of a connection's read buffer. When a pipeline fills the
	// buffer, its size becomes four times as large, up to CommandBytesMax, so that one read gets
	// the next pipeline.
	readBytesFirst = 4 << 10
	// readBytesFree is the part of a read buffer that the shared budget does not count.
	readBytesFree = 16 << 10
	// After smallReadsMax consecutive reads that fit readBytesFree, a connection releases its large
	// buffer.
	smallReadsMax = 64
	// largeIdleMax is how long an idle connection keeps a large buffer. Pools keep idle
	// connections, whose large buffers would take memory from busy connections.
	largeIdleMax = time.Second
	// A read deadline may expire early, by up to 1/deadlineSlack of its timeout. To set an exact
	// deadline for every read would cost as much as to look up a key.
	deadlineSlack = 8
)

// CommandBytesMin is the least value of Bounds.CommandBytesMax.
const CommandBytesMin = readBytesFirst

// ErrMemory is the reply to a client that needs more memory while the connections' shared memory is
// used up.
const ErrMemory = "OVERLOADED the connections take all the memory that they may"

// Bounds are the bounds of the connections of a server.
type Bounds struct {
	// ArriveTimeout bounds the time from the first byte of a command to its last byte.
	ArriveTimeout time.Duration
	// IdleTimeout is how long a connection without a command stays open. Redis clients do not
	// expect the server to close a connection. Pools themselves drop connections that are idle for
	// 30 minutes.
	IdleTimeout time.Duration
	// WriteTimeout bounds the time in which a client accepts a reply.
	WriteTimeout time.Duration

	// CommandBytesMax bounds the bytes of a command, and the bytes that a connection reads ahead.
	CommandBytesMax int
	// BulkBytesMax bounds one argument. Keys have under 100 bytes; longer text is only for
	// ECHO and PING.
	BulkBytesMax int
	// ArgsMax bounds the arguments of a command: MSET of 10,000 keys.
	ArgsMax int
	// OutputBytesMax bounds the replies that wait for a client that does not read. Beyond it, the
	// server closes the connection.
	OutputBytesMax int
}

// SetDefaults replaces zero bounds by their defaults.
func (b *Bounds) SetDefaults() {
	b.ArriveTimeout = cmp.Or(b.ArriveTimeout, 30*time.Second)
	b.IdleTimeout = cmp.Or(b.IdleTimeout, time.Hour)
	b.WriteTimeout = cmp.Or(b.WriteTimeout, 10*time.Second)
	b.CommandBytesMax = cmp.Or(b.CommandBytesMax, 1<<20)
	b.BulkBytesMax = cmp.Or(b.BulkBytesMax, 64<<10)
	b.ArgsMax = cmp.Or(b.ArgsMax, 20_001)
	b.OutputBytesMax = cmp.Or(b.OutputBytesMax, 16<<20)
}

// Shared has the bounds, budgets and metrics that all connections of a server share.
type Shared struct {
	Bounds
	Memory  gate.Budget    // does not count the memory that each connection may use without a reservation
	Running sync.WaitGroup // the running senders, and the server's running connections
	Stopped chan struct{}  // closed when the server stops

	Timeouts, OutputFull, Received, Sent prometheus.Counter
}

// Stopping reports whether the server stops.
func (s *Shared) Stopping() bool {
	select {
	case <-s.Stopped:
		return true
	default:
		return false
	}
}

// Input reads the commands of a connection. Only the connection's goroutine may use it.
type Input struct {
	shared *Shared
	conn   net.Conn
	parser Parser

	buf      []byte // buf[from:to] was read, but not executed yet
	from, to int
	reserved int       // bytes reserved from the shared memory
	small    int       // number of consecutive reads that needed no large buffer
	until    time.Time // the current read deadline
	partial  bool      // the field until is the deadline for the command at the start of buf[from:to]
}

// NewInput returns the input of a connection.
func NewInput(shared *Shared, conn net.Conn) Input {
	return Input{shared: shared, conn: conn, buf: make([]byte, readBytesFirst), parser: Parser{ArgsMax: shared.ArgsMax, BulkBytesMax: shared.BulkBytesMax}}
}

// Next returns the next command that has arrived, and its size for Done. See Parser.Next.
func (in *Input) Next() (args [][]byte, n int, err error) {
	return in.parser.Next(in.buf[in.from:in.to])
}

// Done drops an executed command of n bytes. The time to arrive begins again for the next command.
func (in *Input) Done(n int) { in.from, in.partial = in.from+n, false }

// Shrink releases the memory of executed commands with many arguments.
func (in *Input) Shrink() { in.parser.Shrink() }

// Release frees the memory that the input has reserved.
func (in *Input) Release() {
	in.shared.Memory.Release(in.reserved)
	in.reserved = 0
}

// Read waits for bytes and reads as many as fit. It returns false if no more bytes will come. If the
// client has exceeded a bound, fault is the last reply to it. The parameter unknown is set for a
// client that must authenticate first. Such a client gets only a buffer that needs no reservation, so
// it cannot use up the memory of other clients.
func (in *Input) Read(unknown bool) (more bool, fault string) {
	bytesMax := in.shared.CommandBytesMax
	if unknown {
		bytesMax = min(bytesMax, readBytesFree)
	}
	if !in.grow(bytesMax) {
		return false, in.tooLarge(bytesMax)
	}
	if !in.setDeadline(unknown) {
		return false, ""
	}
	n, err := in.conn.Read(in.buf[in.to:])
	in.to += n
	in.shared.Received.Add(float64(n))
	if n > 0 {
		return true, ""
	}
	if errors.Is(err, gate.ErrTLS) {
		return false, ProtocolError(err.Error()).Error()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || in.shared.Stopping() {
		return false, ""
	}
	if in.reserved > 0 && in.from == in.to {
		in.giveUp()
		return in.Read(unknown)
	}
	in.shared.Timeouts.Inc()
	return false, ""
}

// tooLarge returns the reply to a client whose buffer must not grow.
func (in *Input) tooLarge(bytesMax int) string {
	switch {
	case len(in.buf) < bytesMax:
		return ErrMemory
	case bytesMax < in.shared.CommandBytesMax:
		return ProtocolError("a command of a client that has not authenticated is larger than " + SizeText(bytesMax)).Error()
	}
	return ProtocolError("a command is larger than " + SizeText(bytesMax)).Error()
}

// grow makes room in the buffer for at least one more byte, or returns false. It also grows a
// buffer that the last read has filled, because more bytes are likely to follow.
func (in *Input) grow(bytesMax int) bool {
	full := in.to == len(in.buf)
	if in.from == in.to {
		in.shrink()
	}
	if in.from > 0 {
		in.from, in.to = 0, copy(in.buf, in.buf[in.from:in.to])
	}
	if !full {
		return true
	}
	size := max(min(4*len(in.buf), bytesMax), len(in.buf))
	grown := max(size-readBytesFree, 0) - in.reserved
	if size == len(in.buf) || !in.shared.Memory.Acquire(grown) {
		return in.to < len(in.buf)
	}
	in.reserved += grown
	buf := make([]byte, size)
	copy(buf, in.buf[:in.to])
	in.buf = buf
	return true
}

// shrink replaces a large buffer by a small one if the client has not needed it for a while.
func (in *Input) shrink() {
	if in.to > readBytesFree {
		in.small = 0
		return
	}
	if in.small++; in.small < smallReadsMax || in.reserved == 0 {
		return
	}
	in.giveUp()
}

// giveUp releases the large buffer, which must be empty.
func (in *Input) giveUp() {
	in.Release()
	in.small = 0
	in.buf, in.from, in.to = make([]byte, readBytesFree), 0, 0
	in.parser.Forget()
}

// setDeadline sets the deadline for the next bytes. It returns false if that deadline has passed.
func (in *Input) setDeadline(unknown bool) bool {
	now, partial := time.Now(), in.to > in.from
	timeout := in.shared.IdleTimeout
	switch {
	case partial:
		timeout = in.shared.ArriveTimeout
	case unknown: // a client without authentication must not hold a connection for long
		timeout = min(timeout, in.shared.ArriveTimeout)
	case in.reserved > 0:
		timeout = min(timeout, largeIdleMax)
	}
	left := in.until.Sub(now)
	switch {
	case partial && in.partial: // keep the deadline, because it is for this command
		if left <= 0 {
			in.shared.Timeouts.Inc()
		}
		return left > 0
	case partial == in.partial && left <= timeout && left > timeout-timeout/deadlineSlack:
		return true
	}
	in.until, in.partial = now.Add(timeout), partial
	// Shutdown wakes a connection by a deadline in the past, which the new deadline may have
	// replaced. So check Stopping after that.
	return in.conn.SetReadDeadline(in.until) == nil && !in.shared.Stopping()
}

// SizeText formats a number of bytes.
func SizeText(n int) string {
	if n%(1<<10) == 0 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
