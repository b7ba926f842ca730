package redis

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/auth"
)

// Config configures a Server. A zero bound or timeout means its default.
type Config struct {
	Backend  Backend      // required
	Listener net.Listener // required; closed by Shutdown

	// Timeout bounds the calls of the Backend for a pipeline, from when the pipeline was read.
	Timeout time.Duration
	// ArriveTimeout bounds the time in which a whole command arrives, from its first byte.
	ArriveTimeout time.Duration
	// IdleTimeout is how long a connection without a command stays open. Redis clients do not
	// expect the server to close it, and pools drop connections that are idle for 30 minutes.
	IdleTimeout time.Duration
	// WriteTimeout bounds the time in which a client accepts a reply.
	WriteTimeout time.Duration

	// CommandBytesMax bounds the bytes of a command, and with it what a connection reads
	// ahead.
	CommandBytesMax int
	// BulkBytesMax bounds one argument. Keys have under 100 bytes; longer text is only for
	// ECHO and PING.
	BulkBytesMax int
	// ArgsMax bounds the arguments of a command: MSET of 10,000 keys.
	ArgsMax int
	// OutputBytesMax bounds the replies that wait for a client that does not read. Beyond it, the
	// server closes the connection.
	OutputBytesMax int
	// LargeBytesMax bounds the memory of all connections together. It does not count 16 KiB for
	// each read buffer, 4 KiB for each transaction, and the memory in which commands are planned.
	LargeBytesMax int
	// ConnsMax bounds the open connections. A further connection receives an error and is closed.
	ConnsMax int
	// DescriptorsMax bounds the file descriptors of connections. The node reserves higher ones for
	// itself, so the server refuses connections that get them. 0 means the bound of scarce.Bounds.
	DescriptorsMax int

	// Auth identifies callers and checks their rights; nil lets everybody do everything.
	Auth *auth.Authorizer

	Version  string               // for INFO
	Registry *prometheus.Registry // required
	Logger   *slog.Logger         // required
}

// The defaults of Config.
const (
	timeoutDefault         = 5 * time.Second
	arriveTimeoutDefault   = 30 * time.Second
	idleTimeoutDefault     = time.Hour
	writeTimeoutDefault    = 10 * time.Second
	commandBytesMaxDefault = 1 << 20
	bulkBytesMaxDefault    = 64 << 10
	argsMaxDefault         = 20_001
	outputBytesMaxDefault  = 16 << 20
	largeBytesMaxDefault   = 256 << 20
	connsMaxDefault        = 8192
)

// withDefaults returns the config with defaults for zero values, or an error for an invalid
// one.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Backend == nil:
		return c, errors.New("config: no Backend")
	case c.Listener == nil:
		return c, errors.New("config: no Listener")
	case c.Registry == nil:
		return c, errors.New("config: no Registry")
	case c.Logger == nil:
		return c, errors.New("config: no Logger")
	}
	c.Timeout = cmp.Or(c.Timeout, timeoutDefault)
	c.ArriveTimeout = cmp.Or(c.ArriveTimeout, arriveTimeoutDefault)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, idleTimeoutDefault)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, writeTimeoutDefault)
	if least := min(c.Timeout, c.ArriveTimeout, c.IdleTimeout, c.WriteTimeout); least < 0 {
		return c, fmt.Errorf("config: a timeout is %s", least)
	}
	c.CommandBytesMax = cmp.Or(c.CommandBytesMax, commandBytesMaxDefault)
	c.BulkBytesMax = cmp.Or(c.BulkBytesMax, bulkBytesMaxDefault)
	c.ArgsMax = cmp.Or(c.ArgsMax, argsMaxDefault)
	c.OutputBytesMax = cmp.Or(c.OutputBytesMax, outputBytesMaxDefault)
	c.LargeBytesMax = cmp.Or(c.LargeBytesMax, largeBytesMaxDefault)
	c.ConnsMax = cmp.Or(c.ConnsMax, connsMaxDefault)
	if c.CommandBytesMax < readBytesFirst {
		return c, fmt.Errorf("config: CommandBytesMax is %d, at least %d is needed", c.CommandBytesMax, readBytesFirst)
	}
	if least := min(c.BulkBytesMax, c.ArgsMax, c.OutputBytesMax, c.LargeBytesMax, c.ConnsMax); least < 1 {
		return c, fmt.Errorf("config: a bound is %d", least)
	}
	return c, nil
}

const (
	// readBytesFirst is the first size of a connection's read buffer. When a pipeline
	// fills the buffer, it grows fourfold, up to CommandBytesMax, so that the next
	// pipeline is read at once.
	readBytesFirst = 4 << 10
	// readBytesFree is the part of a read buffer that the shared budget does not count.
	readBytesFree = 16 << 10
	// After smallReadsMax consecutive reads that fit readBytesFree, a connection releases its large
	// buffer.
	smallReadsMax = 64
	// largeIdleMax is how long an idle connection keeps a large buffer. Pools have more
	// connections than they use, and a buffer counts against all others.
	largeIdleMax = time.Second
	// A deadline may expire early by 1/deadlineSlack of its timeout. Setting the deadline exactly,
	// for every read, would cost as much as looking up a key.
	deadlineSlack = 8
)
