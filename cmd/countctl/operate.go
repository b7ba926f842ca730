package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/client"
)

const (
	// lookEvery is how often a command that waits looks at the cluster.
	lookEvery = 200 * time.Millisecond
	// operateRetryFor outlives an election, which is when a cluster is looked at.
	operateRetryFor = 10 * time.Second
)

// errNotYet is returned by commands that waited for as long as they should.
var errNotYet = errors.New("not done in time; the cluster goes on with it")

// goesOnError is of a command that was interrupted while it waited for what the
// cluster goes on with.
type goesOnError struct{ how string } // the order goes on, and is taken back

func (e *goesOnError) Error() string { return "interrupted, but the order goes on: " + e.how }

// goesOn says how an order goes on if the wait for it was interrupted.
func goesOn(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return &goesOnError{fmt.Sprintf(format, args...)}
	}
	return err
}

// operate makes a client for work on the cluster: it begins at --addr and goes
// on to any other node, so that a command outlives the node it began with. It
// returns the nodes as they are.
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
		if addr := "http://" + n.HTTPAddr; n.Answers && !slices.Contains(addrs, addr) && len(addrs) < client.AddrsMax {
			if _, err := client.ParseAddr(addr); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	server, err := client.New(client.Config{Addrs: addrs, Timeout: c.timeout, Retry: client.Retry{For: operateRetryFor}})
	return server, seen.Nodes, err
}

// say tells what is being done. It goes to standard error: what was asked for
// goes to standard output.
func (c *cli) say(format string, args ...any) { fmt.Fprintf(c.err, format+"\n", args...) }

// confirmRisk is confirm for what should not be begun by accident: without a
// terminal it takes --yes.
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

// await looks until nothing is waited for any more, and says what is whenever
// that changes. A node that does not answer meanwhile is waited for too.
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

// nodeNow looks at one node.
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

// metaKeyspace is where the group of the catalog stands in place of a keyspace.
const metaKeyspace = "meta"

// condition puts what is known of a node into a word.
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
