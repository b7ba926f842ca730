package redis

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Server needs. A zero bound or timeout means its default.
type Config struct {
	Backend  Backend      // required
	Listener net.Listener // required; closed by Shutdown

	// Timeout is the deadline of what a pipeline asks of the Backend, counted
	// from when it has been read.
	Timeout time.Duration
	// ArriveTimeout is how long a command may take to arrive whole, from its
	// first byte.
	ArriveTimeout time.Duration
	// IdleTimeout is how long a connection is kept without a command. Clients of
	// Redis do not expect to be closed; pools drop what is idle for 30 minutes.
	IdleTimeout time.Duration
	// WriteTimeout is how long a client may take to accept any of its replies.
	WriteTimeout time.Duration

	// CommandBytesMax bounds one command as it is sent, and with it what one
	// connection reads ahead.
	CommandBytesMax int
	// BulkBytesMax bounds one argument. Keys take under 100 bytes; what is
	// longer is text for ECHO and PING.
	BulkBytesMax int
	// ArgsMax bounds the arguments of a command: MSET of 10,000 keys.
	ArgsMax int
	// OutputBytesMax bounds the replies that wait for a client that does not
	// read; past it the connection is closed.
	OutputBytesMax int
	// LargeBytesMax bounds the memory of all connections together, beyond the
	// 16 KiB that each may read into, the 4 KiB of a transaction and, while it
	// executes, what it plans in.
	LargeBytesMax int
	// ConnsMax bounds the open connections; one more is told so and closed.
	ConnsMax int

	Version  string               // told by INFO
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

// withDefaults returns the config with its zero values filled in, or what is
// wrong with it.
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
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"Timeout", &c.Timeout, timeoutDefault},
		{"ArriveTimeout", &c.ArriveTimeout, arriveTimeoutDefault},
		{"IdleTimeout", &c.IdleTimeout, idleTimeoutDefault},
		{"WriteTimeout", &c.WriteTimeout, writeTimeoutDefault},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
		if *d.value < 0 {
			return c, fmt.Errorf("config: %s is negative", d.name)
		}
	}
	for _, n := range []struct {
		name            string
		value           *int
		least, standard int
	}{
		{"CommandBytesMax", &c.CommandBytesMax, readBytesFirst, commandBytesMaxDefault},
		{"BulkBytesMax", &c.BulkBytesMax, 1, bulkBytesMaxDefault},
		{"ArgsMax", &c.ArgsMax, 1, argsMaxDefault},
		{"OutputBytesMax", &c.OutputBytesMax, 1, outputBytesMaxDefault},
		{"LargeBytesMax", &c.LargeBytesMax, 1, largeBytesMaxDefault},
		{"ConnsMax", &c.ConnsMax, 1, connsMaxDefault},
	} {
		if *n.value == 0 {
			*n.value = n.standard
		}
		if *n.value < n.least {
			return c, fmt.Errorf("config: %s is %d, at least %d is needed", n.name, *n.value, n.least)
		}
	}
	return c, nil
}
