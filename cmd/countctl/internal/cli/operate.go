package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
)

const (
	// PollEvery is the pause between two polls of a command that waits for the cluster.
	PollEvery = 200 * time.Millisecond
	// operateRetryFor is longer than an election, so that calls succeed even during one.
	operateRetryFor = 10 * time.Second
)

// Operate returns a client for operators' commands, and the nodes of the cluster. The client first
// uses --addr, and can change to any other node that answers. So a command survives the loss of the
// node that it started with.
func (c *CLI) Operate(ctx context.Context) (*client.Client, []admin.ClusterNode, error) {
	first, err := c.ConnectFor(client.Retry{For: operateRetryFor})
	if err != nil {
		return nil, nil, err
	}
	defer first.Close()
	seen, err := admin.New(first).ClusterNodes(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the nodes: %w", err)
	}
	addrs := first.Addrs()
	for _, n := range seen.Nodes {
		if addr := NodeURL(first, n.HTTPAddr); n.Answers && !slices.Contains(addrs, addr) && len(addrs) < client.AddrsMax {
			if _, err := client.ParseAddr(addr); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	server, err := c.Dial(addrs, client.Retry{For: operateRetryFor})
	return server, seen.Nodes, err
}

// Poll calls check until check returns done or an error, or ctx ends. It waits for pause between
// two calls.
func Poll(ctx context.Context, pause time.Duration, check func() (done bool, err error)) error {
	for {
		if done, err := check(); done || err != nil {
			return err
		}
		if err := Pause(ctx, pause); err != nil {
			return err
		}
	}
}

// Pause waits for d. If ctx ends during the pause, it returns ctx's error.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// GroupName returns the name of a group for output, such as posts/3.
func GroupName(g admin.ClusterGroup) string {
	if g.Keyspace == MetaKeyspace {
		return MetaKeyspace
	}
	return fmt.Sprintf("%s/%d", g.Keyspace, g.Shard)
}

// MetaKeyspace is the keyspace name in reports about the catalog's group. No real keyspace has that
// name.
const MetaKeyspace = "meta"

// Say prints progress to standard error; standard output is for results.
func (c *CLI) Say(format string, args ...any) { fmt.Fprintf(c.Err, format+"\n", args...) }
