package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

const (
	// lookEvery is how often a waiting command polls the cluster.
	lookEvery = 200 * time.Millisecond
	// operateRetryFor is longer than an election.
	operateRetryFor = 10 * time.Second
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

// operate returns a client for work on the cluster, and the nodes. The client starts with
// --addr and may use any other node, so that a command survives the node that it started
// with.
func (c *cli) operate(ctx context.Context) (*client.Client, []client.ClusterNode, error) {
	first, err := c.connectFor(client.Retry{For: operateRetryFor})
	if err != nil {
		return nil, nil, err
	}
	defer first.Close()
	seen, err := first.ClusterNodes(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the nodes: %w", err)
	}
	addrs := first.Addrs()
	for _, n := range seen.Nodes {
		if addr := nodeURL(first, n.HTTPAddr); n.Answers && !slices.Contains(addrs, addr) && len(addrs) < client.AddrsMax {
			if _, err := client.ParseAddr(addr); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	server, err := c.dial(addrs, client.Retry{For: operateRetryFor})
	return server, seen.Nodes, err
}

// say prints progress to standard error; standard output is for results.
func (c *cli) say(format string, args ...any) { fmt.Fprintf(c.err, format+"\n", args...) }

// confirmRisk is confirm for commands that must not run by accident: without a terminal
// --yes is needed.
func (c *cli) confirmRisk(question string) error {
	if err := c.mayAsk(question); err != nil {
		return err
	}
	return c.confirm(question)
}

// mayAsk refuses a question where there is neither a terminal nor --yes.
func (c *cli) mayAsk(question string) error {
	if !c.yes && (!isTerminal(c.in) || !isTerminal(c.err)) {
		return usagef("%s Give --yes", question)
	}
	return nil
}

// await polls until look returns no reason to wait, and prints each new reason. It also
// waits while a node does not answer.
func (c *cli) await(ctx context.Context, wait time.Duration, look func(context.Context) (waitsFor string, err error)) error {
	end, said := time.Now().Add(wait), ""
	for {
		waitsFor, err := look(ctx)
		switch {
		case err == nil && waitsFor == "":
			return nil
		case err != nil && !client.Retryable(err):
			return err
		case err != nil:
			waitsFor = err.Error()
		}
		if waitsFor != said {
			c.say("%s", waitsFor)
			said = waitsFor
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v: %s: %w", wait, waitsFor, errNotYet)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// findNode returns the node of a name or key, of several of a name the first
// that is not leaving.
func findNode(nodes []client.ClusterNode, called string) (client.ClusterNode, bool) {
	i := slices.IndexFunc(nodes, func(n client.ClusterNode) bool { return n.Key == called || n.ID == called })
	if i < 0 {
		return client.ClusterNode{}, false
	}
	return nodes[i], true
}

// nodeNow returns the current state of a node.
func nodeNow(ctx context.Context, server *client.Client, key string) (client.ClusterNode, bool, error) {
	seen, err := server.ClusterNodes(ctx)
	if err != nil {
		return client.ClusterNode{}, false, err
	}
	n, there := findNode(seen.Nodes, key)
	return n, there, nil
}

// groupName is how a group is called, as in a plan.
func groupName(g client.ClusterGroup) string {
	if g.Keyspace == metaKeyspace {
		return metaKeyspace
	}
	return fmt.Sprintf("%s/%d", g.Keyspace, g.Shard)
}

// metaKeyspace takes the place of a keyspace for the group of the catalog.
const metaKeyspace = "meta"

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

// ask prints a question and returns the answer. An interrupt ends it and the command; the
// goroutine that still reads then ends with the process.
func (c *cli) ask(question string) (string, error) {
	fmt.Fprint(c.err, question)
	type reply struct {
		line string
		err  error
	}
	replies := make(chan reply, 1)
	go func() {
		line, err := bufio.NewReader(c.in).ReadString('\n')
		replies <- reply{line, err}
	}()
	select {
	case r := <-replies:
		return r.line, r.err
	case <-c.interrupted:
		fmt.Fprintln(c.err)
		return "", context.Canceled
	}
}

// confirm asks on a terminal. Without one, or with --yes, it accepts.
func (c *cli) confirm(question string) error {
	if c.yes || !isTerminal(c.in) || !isTerminal(c.err) {
		return nil
	}
	answer, err := c.ask(question + " [y/N] ")
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") {
		return fmt.Errorf("nothing was done; answer y, or give --yes")
	}
	return nil
}

const (
	// drainWait is a generous time for some tens of groups to change hands.
	drainWait = 2 * time.Minute
	// moveWait is long enough to copy many replicas one by one.
	moveWait = 24 * time.Hour
)

func waitFlag(cmd *cobra.Command, wait *time.Duration) {
	durationFlag(cmd.Flags(), wait, "wait", *wait, "how long to wait for the end")
}
