package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/shard"
)

// Backend is the part of a node that the server calls; *shard.Node implements it. Its methods are
// safe for concurrent use and keep none of their arguments. Results must not change after the
// return.
type Backend interface {
	// Node answers queries and writes. See shard.ReadError and shard.PartialError.
	inbox.Node
	inbox.Node
	// Keyspaces returns all keyspaces sorted by name.
	Keyspaces() []*shard.Keyspace
	// CatchUp waits until Keyspace reflects every change that any node acknowledged before the
	// call.
	CatchUp(ctx context.Context) error
	Status() shard.Status
}

// Config configures a Server. A zero bound or timeout means its default.
type Config struct {
	Backend  Backend          // required
	Listener net.Listener     // required; closed by Shutdown
	Outboxes inbox.OutboxKeep // bounds of the outboxes of authors

	// Timeout bounds the time of the calls of the Backend for a pipeline. The time begins when the
	// server has read the pipeline.
	Timeout time.Duration
	resp.Bounds
	// LargeBytesMax bounds the memory of all connections together. It does not count 16 KiB for
	// each read buffer, 4 KiB for each transaction, and the memory in which commands are planned.
	LargeBytesMax int
	// ConnsMax bounds the open connections. The server answers a further connection with an error
	// and closes it.
	ConnsMax int
	// DescriptorsMax bounds the file descriptors of connections. Descriptors of DescriptorsMax or
	// more are reserved for the node itself, so the server refuses connections with such a
	// descriptor. 0 means the bound of scarce.Bounds.
	DescriptorsMax int

	// Auth identifies callers and checks their rights; nil lets everybody do everything.
	Auth *auth.Authorizer

	Version  string               // for INFO
	Registry *prometheus.Registry // required
	Logger   *slog.Logger         // required
}

// withDefaults returns the config with defaults for zero values, or an error if it is invalid.
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
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.SetDefaults()
	if least := min(c.Timeout, c.ArriveTimeout, c.IdleTimeout, c.WriteTimeout); least < 0 {
		return c, fmt.Errorf("config: a timeout is %s", least)
	}
	c.LargeBytesMax = cmp.Or(c.LargeBytesMax, 256<<20)
	c.ConnsMax = cmp.Or(c.ConnsMax, 8192)
	if c.CommandBytesMax < resp.CommandBytesMin {
		return c, fmt.Errorf("config: CommandBytesMax is %d, at least %d is needed", c.CommandBytesMax, resp.CommandBytesMin)
	}
	if least := min(c.BulkBytesMax, c.ArgsMax, c.OutputBytesMax, c.LargeBytesMax, c.ConnsMax); least < 1 {
		return c, fmt.Errorf("config: a bound is %d", least)
	}
	return c, nil
}
