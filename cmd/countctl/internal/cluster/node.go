package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// nodesOutput is the JSON output of "node list".
type nodesOutput struct {
	ClusterID   string              `json:"cluster_id"`
	ClusterName string              `json:"cluster_name,omitempty"`
	Nodes       []admin.ClusterNode `json:"nodes"`
}

// nodeOutput is the JSON output of the commands node drain, node undrain and node remove.
type nodeOutput struct {
	Node    string `json:"node"`
	Key     string `json:"key"`
	State   string `json:"state"` // active, draining, leaving or removed
	Changed bool   `json:"changed"`
	Leads   int    `json:"leads"`
	Done    bool   `json:"done"` // the cluster has completed the change
}

func nodeCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("node", "List, drain and remove the nodes of the cluster",
		c.ListCommand("nodes", listNodes), nodeDrainCommand(c), nodeUndrainCommand(c), nodeRemoveCommand(c))
}

func listNodes(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
	seen, err := admin.New(server).ClusterNodes(ctx)
	return nodesOutput(seen), func(t *cli.Table) { nodeRows(t, seen.Nodes) }, err
}

func nodeRows(t *cli.Table, nodes []admin.ClusterNode) {
	t.Row("NODE", "KEY", "ZONE", "STATE", "VERSION", "LEADS", "REPLICAS", "HTTP")
	for _, n := range nodes {
		t.Row(n.ID, n.Key, n.Zone, condition(n), n.Version, n.Leads, n.Replicas, n.HTTPAddr)
	}
}

func nodeDrainCommand(c *cli.CLI) *cobra.Command {
	wait := drainWait
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the leaders off a node, give it no new replicas, and wait until it leads nothing",
		Long: `Move the leaders off a node, give it no new replicas, and wait until it leads nothing.

It keeps its replicas and answers requests. End the drain with node undrain.`,
		RunE: onNode(c, func(ctx context.Context, server *client.Client, _ []admin.ClusterNode, n admin.ClusterNode) (nodeOutput, error) {
			c.Say("%s hands over %s that it leads and gets no new replicas", n.ID, cli.Counted(n.Leads, "group"))
			if err := c.Confirm("Drain " + n.ID + "?"); err != nil {
				return nodeOutput{}, err
			}
			return drain(ctx, c, server, n, wait)
		}),
	}
	cli.WaitFlag(cmd, &wait)
	return cmd
}

// mayMove returns an error if half or more of the nodes other than leaver are dead. With so many
// dead nodes, no replica can move, and a removal would wait forever.
func mayMove(nodes []admin.ClusterNode, leaver admin.ClusterNode) error {
	staying, dead := 0, []string{}
	for _, n := range nodes {
		if n.Key == leaver.Key || n.State == "leaving" {
			continue
		}
		staying++
		if !n.Alive {
			dead = append(dead, n.ID)
		}
	}
	if len(dead) > 0 && 2*len(dead) >= staying {
		return fmt.Errorf("%s cannot be removed: no replica can move while %d of the other %d nodes are dead (%s); start them again first",
			leaver.ID, len(dead), staying, strings.Join(dead, ", "))
	}
	return nil
}

// onNode returns a RunE function for a command whose first argument is a node. The function calls
// act, which changes the node, and prints the result.
func onNode(c *cli.CLI, act func(context.Context, *client.Client, []admin.ClusterNode, admin.ClusterNode) (nodeOutput, error)) func(*cobra.Command, []string) error {
	return c.OnCluster(func(ctx context.Context, server *client.Client, nodes []admin.ClusterNode, args []string) error {
		n, there := findNode(nodes, args[0])
		if !there {
			return fmt.Errorf("there is no node %s; see countctl node list", args[0])
		}
		out, err := act(ctx, server, nodes, n)
		if err != nil {
			return err
		}
		return c.Print(out, func(t *cli.Table) {
			t.Row("NODE", "KEY", "STATE", "LEADS")
			t.Row(out.Node, out.Key, out.State, out.Leads)
		})
	})
}

func changeNode(ctx context.Context, call func(ctx context.Context, key string) (admin.Changed, error), verb string, n admin.ClusterNode) (nodeOutput, error) {
	changed, err := call(ctx, n.Key)
	if err != nil {
		return nodeOutput{}, fmt.Errorf("cannot %s %s: %w", verb, n.ID, err)
	}
	return nodeOutput{Node: n.ID, Key: n.Key, State: changed.Node.State, Changed: changed.Changed, Leads: n.Leads}, nil
}

// drain drains a node. Unless --no-wait is given, it then waits until the node leads no group.
func drain(ctx context.Context, c *cli.CLI, server *client.Client, n admin.ClusterNode, wait time.Duration) (nodeOutput, error) {
	out, err := changeNode(ctx, admin.New(server).Drain, "drain", n)
	if err != nil || c.NoWait {
		return out, err
	}
	out.Done = true
	err = c.Await(ctx, wait, func(ctx context.Context) (string, error) {
		now, there, err := nodeNow(ctx, server, n.Key)
		if err != nil || !there {
			return "", err
		}
		if out.Leads = now.Leads; now.Leads > 0 {
			return fmt.Sprintf("%s leads %s", n.ID, cli.Counted(now.Leads, "group")), nil
		}
		return "", nil
	})
	return out, cli.GoesOn(err, "%s is drained; countctl node undrain %s ends that", n.ID, n.ID)
}

func nodeUndrainCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "undrain NODE",
		Short: "End a drain, or keep a node that is leaving",
		RunE: onNode(c, func(ctx context.Context, server *client.Client, _ []admin.ClusterNode, n admin.ClusterNode) (nodeOutput, error) {
			out, err := changeNode(ctx, admin.New(server).Undrain, "undrain", n)
			out.Done = err == nil
			return out, err
		}),
	}
}

func nodeRemoveCommand(c *cli.CLI) *cobra.Command {
	wait := moveWait
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Move a node's replicas to others, remove it from the cluster, and wait for that",
		Long: `Move a node's replicas to others, remove it from the cluster, and wait for that.

Replicas move two groups at a time; each is copied before the old one is removed. Stop
the node's process once the node is removed, and never start it on that data directory
again. Until then, node undrain keeps the node in the cluster.`,
		RunE: onNode(c, func(ctx context.Context, server *client.Client, nodes []admin.ClusterNode, n admin.ClusterNode) (nodeOutput, error) {
			if err := mayMove(nodes, n); err != nil {
				return nodeOutput{}, err
			}
			c.Say("%s leaves the cluster: its %d replicas move to other nodes, then it is removed for good", n.ID, n.Replicas)
			if err := c.ConfirmRisk("Remove " + n.ID + "?"); err != nil {
				return nodeOutput{}, err
			}
			return removeNode(ctx, c, server, n, wait)
		}),
	}
	cli.WaitFlag(cmd, &wait)
	return cmd
}

func removeNode(ctx context.Context, c *cli.CLI, server *client.Client, n admin.ClusterNode, wait time.Duration) (nodeOutput, error) {
	out, err := changeNode(ctx, admin.New(server).Remove, "remove", n)
	if err != nil || c.NoWait {
		return out, err
	}
	err = c.Await(ctx, wait, func(ctx context.Context) (string, error) {
		now, there, err := nodeNow(ctx, server, n.Key)
		switch {
		case err != nil:
			return "", err
		case !there:
			out.State, out.Leads, out.Done = "removed", 0, true
			return "", nil
		case now.State != "leaving":
			return "", fmt.Errorf("%s is %s: it is not to leave any more", n.ID, now.State)
		}
		out.Leads = now.Leads
		return fmt.Sprintf("%s holds %d replicas and leads %d", n.ID, now.Replicas, now.Leads), nil
	})
	return out, cli.GoesOn(err, "%s leaves the cluster; until it is removed, countctl node undrain %s keeps it", n.ID, n.ID)
}
