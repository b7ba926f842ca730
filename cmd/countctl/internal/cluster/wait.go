package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// errNotYet is returned by commands that waited for as long as they should.
var errNotYet = errors.New("not done in time; the cluster continues")

// goesOnError is returned by a command that was interrupted while the cluster carries out
// its order; how is how the order continues and is cancelled.
type goesOnError struct{ how string }

func (e *goesOnError) Error() string { return "interrupted, but the cluster continues: " + e.how }

// goesOn adds to err how an order continues after an interrupted wait.
func goesOn(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return &goesOnError{fmt.Sprintf(format, args...)}
	}
	return err
}

// await polls until look returns "" as the reason to wait, and prints each new reason. It also
// waits while a node does not answer.
func await(ctx context.Context, c *cli.CLI, wait time.Duration, look func(context.Context) (waitsFor string, err error)) error {
	end, said := time.Now().Add(wait), ""
	return cli.Poll(ctx, cli.PollEvery, func() (bool, error) {
		waitsFor, err := look(ctx)
		switch {
		case err == nil && waitsFor == "":
			return true, nil
		case err != nil && !client.Retryable(err):
			return false, err
		case err != nil:
			waitsFor = err.Error()
		}
		if waitsFor != said {
			c.Say("%s", waitsFor)
			said = waitsFor
		}
		if time.Now().After(end) {
			return false, fmt.Errorf("after %v: %s: %w", wait, waitsFor, errNotYet)
		}
		return false, nil
	})
}

// FindNode returns the node of a name or key, of several of a name the first
// that is not leaving.
func FindNode(nodes []client.ClusterNode, called string) (client.ClusterNode, bool) {
	i := slices.IndexFunc(nodes, func(n client.ClusterNode) bool { return n.Key == called || n.ID == called })
	if i < 0 {
		return client.ClusterNode{}, false
	}
	return nodes[i], true
}

// nodeNow returns the current state of a node.
func nodeNow(ctx context.Context, server *client.Client, key string) (client.ClusterNode, bool, error) {
	seen, err := server.Admin().ClusterNodes(ctx)
	if err != nil {
		return client.ClusterNode{}, false, err
	}
	n, there := FindNode(seen.Nodes, key)
	return n, there, nil
}

// condition returns the state of a node in a word.
func condition(n client.ClusterNode) string {
	switch {
	case !n.Alive:
		return "dead"
	case !n.Answers:
		return "silent"
	case n.NotReady != "":
		return "not ready"
	case n.State != "active":
		return n.State
	}
	return "alive"
}

const (
	// drainWait is a generous time for some tens of groups to change hands.
	drainWait = 2 * time.Minute
	// moveWait is long enough to copy many replicas one by one.
	moveWait = 24 * time.Hour
)

func waitFlag(cmd *cobra.Command, wait *time.Duration) {
	cli.DurationFlag(cmd.Flags(), wait, "wait", *wait, "how long to wait for the end")
}
