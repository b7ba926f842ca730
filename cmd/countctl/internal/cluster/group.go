package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func groupCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("group", "List the Raft groups, hand them over and move their replicas",
		c.ListCommand("groups", listGroups), groupTransferCommand(c), groupMoveCommand(c))
}

func listGroups(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
	groups, err := admin.New(server).ClusterGroups(ctx)
	return map[string]any{"groups": groups}, func(t *cli.Table) { groupRows(t, groups) }, err
}

func groupRows(t *cli.Table, groups []admin.ClusterGroup) {
	t.Row("GROUP", "NAME", "LEADER", "TERM", "VOTERS", "OTHERS", "TARGET", "LAG", "ROWS", "BYTES")
	for _, g := range groups {
		target := "="
		if !sameNames(g.Voters, g.Target) {
			target = strings.Join(g.Target, ",")
		}
		t.Row(g.ID, cli.GroupName(g), cmp.Or(g.Leader, "-"), g.Term, numbered(g, g.Voters), cmp.Or(numbered(g, g.NonVoters), "-"),
			target, lagOf(g), cli.Grouped(g.Rows), cli.Grouped(g.Bytes))
	}
}

// numbered joins the names of nodes. It adds the number of the node's replica to a name if the
// replica has a number.
func numbered(g admin.ClusterGroup, nodes []string) string {
	names := slices.Clone(nodes)
	for _, r := range g.Replicas {
		if _, number, has := strings.Cut(r.ID, "#"); has && slices.Contains(nodes, r.Node) {
			names[slices.Index(nodes, r.Node)] += "#" + number
		}
	}
	return strings.Join(names, ",")
}

// lagOf returns the largest lag among the group's replicas.
func lagOf(g admin.ClusterGroup) uint64 {
	lag := uint64(0)
	for _, r := range g.Replicas {
		lag = max(lag, r.Lag)
	}
	return lag
}

// parseGroup returns the group whose number or name is text, such as 17 or posts/3.
func parseGroup(ctx context.Context, server *client.Client, text string) (admin.ClusterGroup, error) {
	groups, err := admin.New(server).ClusterGroups(ctx)
	if err != nil {
		return admin.ClusterGroup{}, fmt.Errorf("cannot list the groups: %w", err)
	}
	for _, g := range groups {
		if strconv.FormatUint(uint64(g.ID), 10) == text || cli.GroupName(g) == text {
			return g, nil
		}
	}
	return admin.ClusterGroup{}, fmt.Errorf("there is no group %s; see countctl group list", text)
}

func groupTransferCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "transfer GROUP NODE",
		Short:   "Hand a group over to another of its voters",
		Example: "  countctl group transfer posts/3 n2",
		RunE: changeGroup(c, func(ctx context.Context, server *client.Client, g admin.ClusterGroup, args []string) (admin.Changed, error) {
			changed, err := admin.New(server).Transfer(ctx, g.ID, args[1])
			if err != nil {
				err = fmt.Errorf("cannot hand %s over to %s: %w", cli.GroupName(g), args[1], err)
			}
			return changed, err
		}),
	}
}

// changeGroup returns a RunE function for a command whose first argument is a group. The function
// calls change and prints the result.
func changeGroup(c *cli.CLI, change func(context.Context, *client.Client, admin.ClusterGroup, []string) (admin.Changed, error)) func(*cobra.Command, []string) error {
	return c.OnCluster(func(ctx context.Context, server *client.Client, _ []admin.ClusterNode, args []string) error {
		g, err := parseGroup(ctx, server, args[0])
		if err != nil {
			return err
		}
		changed, err := change(ctx, server, g, args)
		if err != nil {
			return err
		}
		return c.Print(changed, func(t *cli.Table) {
			t.Row("GROUP", "NAME", "LEADER", "TARGET")
			t.Row(g.ID, cli.GroupName(g), cmp.Or(changed.Group.Leader, "-"), strings.Join(changed.Group.Target, ","))
		})
	})
}

func groupMoveCommand(c *cli.CLI) *cobra.Command {
	wait := moveWait
	cmd := &cobra.Command{
		Use:   "move GROUP FROM TO",
		Short: "Move a replica of a group to another node, and wait for that",
		Long: `Move a replica of a group to another node, and wait for that.

The new replica catches up and gets a vote before the old one is removed. If nodes then
have uneven numbers of replicas, the cluster evens them out again.`,
		Example: "  countctl group move posts/3 n1 n4",
		RunE: changeGroup(c, func(ctx context.Context, server *client.Client, g admin.ClusterGroup, args []string) (admin.Changed, error) {
			return moveReplica(ctx, c, server, g, args[1], args[2], wait)
		}),
	}
	cli.WaitFlag(cmd, &wait)
	return cmd
}

func moveReplica(ctx context.Context, c *cli.CLI, server *client.Client, g admin.ClusterGroup, from, to string, wait time.Duration) (admin.Changed, error) {
	c.Say("a replica of %s, %s, moves from %s to %s", cli.GroupName(g), cli.Counted(g.Rows, "row"), from, to)
	if err := c.Confirm("Move it?"); err != nil {
		return admin.Changed{}, err
	}
	changed, err := admin.New(server).Move(ctx, g.ID, from, to)
	if err != nil {
		return admin.Changed{}, fmt.Errorf("cannot move %s from %s to %s: %w", cli.GroupName(g), from, to, err)
	}
	if c.NoWait {
		return changed, nil
	}
	err = awaitMove(ctx, c, server, g, wait)
	return changed, cli.GoesOn(err, "%s moves; countctl group move %s %s %s moves it back once that is done", cli.GroupName(g), cli.GroupName(g), to, from)
}

// awaitMove waits until a group's voters equal its target.
func awaitMove(ctx context.Context, c *cli.CLI, server *client.Client, g admin.ClusterGroup, wait time.Duration) error {
	return c.Await(ctx, wait, func(ctx context.Context) (string, error) {
		now, err := parseGroup(ctx, server, strconv.FormatUint(uint64(g.ID), 10))
		switch {
		case err != nil:
			return "", err
		case !sameNames(now.Voters, now.Target):
			return fmt.Sprintf("%s has voters %s, others %s, and is to have %s", cli.GroupName(g),
				strings.Join(now.Voters, ","), cmp.Or(strings.Join(now.NonVoters, ","), "-"), strings.Join(now.Target, ",")), nil
		}
		return "", nil
	})
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
