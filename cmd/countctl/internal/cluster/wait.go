package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// errNotYet is returned if the wait of a command ends before the cluster has carried out the order.
var errNotYet = errors.New("not done in time; the cluster continues")

// goesOnError is returned by a command that was interrupted while the cluster carries out its
// order. advice tells the operator how the order continues and how to end it.
type goesOnError struct{ advice string }

func (e *goesOnError) Error() string { return "interrupted, but the cluster continues: " + e.advice }

// goesOn returns a goesOnError if err is the error of an interrupted wait. Otherwise it returns
// err.
func goesOn(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return &goesOnError{fmt.Sprintf(format, args...)}
	}
	return err
}

// await calls check until waitsFor, the reason to wait, is "". It prints each new reason. It also
// waits after a retryable error, such as a node that does not answer. After the time wait, it
// returns errNotYet.
func await(ctx context.Context, c *cli.CLI, wait time.Duration, check func(context.Context) (waitsFor string, err error)) error {
	end, said := time.Now().Add(wait), ""
	return cli.Poll(ctx, cli.PollEvery, func() (bool, error) {
		waitsFor, err := check(ctx)
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

// findNode returns the node with a name or key. If a leaving node shares its name with another
// node, the server lists the leaving node under its key. So the name always means the other node.
func findNode(nodes []admin.ClusterNode, called string) (admin.ClusterNode, bool) {
	i := slices.IndexFunc(nodes, func(n admin.ClusterNode) bool { return n.Key == called || n.ID == called })
	if i < 0 {
		return admin.ClusterNode{}, false
	}
	return nodes[i], true
}

// nodeNow returns the current state of a node.
func nodeNow(ctx context.Context, server *client.Client, key string) (admin.ClusterNode, bool, error) {
	seen, err := admin.New(server).ClusterNodes(ctx)
	if err != nil {
		return admin.ClusterNode{}, false, err
	}
	n, there := findNode(seen.Nodes, key)
	return n, there, nil
}

// condition returns the state of a node in a word or two.
func condition(n admin.ClusterNode) string {
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
	// drainWait is enough time to transfer the leadership of some tens of groups.
	drainWait = 2 * time.Minute
	// moveWait is enough time to copy many replicas one by one.
	moveWait = 24 * time.Hour
)

func waitFlag(cmd *cobra.Command, wait *time.Duration) {
	cli.DurationFlag(cmd.Flags(), wait, "wait", *wait, "how long to wait for the end")
}
