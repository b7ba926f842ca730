package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// groupsOutput is the JSON output of group list.
type groupsOutput struct {
	Groups []client.ClusterGroup `json:"groups"`
}

func (c *cli) groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "List the Raft groups, hand them over and move their replicas",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("group needs list, transfer or move")
		},
	}
	cmd.AddCommand(c.listCommand("groups", listGroups), c.groupTransferCommand(), c.groupMoveCommand())
	return cmd
}

func listGroups(ctx context.Context, server *client.Client) (any, func(*table), error) {
	groups, err := server.ClusterGroups(ctx)
	return groupsOutput{groups}, func(t *table) { t.groups(groups) }, err
}

func (t *table) groups(groups []client.ClusterGroup) {
	t.row("GROUP", "NAME", "LEADER", "TERM", "VOTERS", "OTHERS", "TARGET", "LAG", "ROWS", "BYTES")
	for _, g := range groups {
		target := "="
		if !sameNames(g.Voters, g.Target) {
			target = strings.Join(g.Target, ",")
		}
		t.row(g.ID, groupName(g), orNone(g.Leader), g.Term, numbered(g, g.Voters), orNone(numbered(g, g.NonVoters)),
			target, lagOf(g), grouped(g.Rows), grouped(g.Bytes))
	}
}

// numbered joins the names of members, each with the number of its replica.
func numbered(g client.ClusterGroup, nodes []string) string {
	names := slices.Clone(nodes)
	for _, r := range g.Replicas {
		if _, number, has := strings.Cut(r.ID, "#"); has && slices.Contains(nodes, r.Node) {
			names[slices.Index(nodes, r.Node)] += "#" + number
		}
	}
	return strings.Join(names, ",")
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// lagOf returns the largest lag of a replica.
func lagOf(g client.ClusterGroup) uint64 {
	lag := uint64(0)
	for _, r := range g.Replicas {
		lag = max(lag, r.Lag)
	}
	return lag
}

// parseGroup parses a group given by number or by name, such as posts/3.
func parseGroup(ctx context.Context, server *client.Client, text string) (client.ClusterGroup, error) {
	groups, err := server.ClusterGroups(ctx)
	if err != nil {
		return client.ClusterGroup{}, fmt.Errorf("cannot list the groups: %w", err)
	}
	for _, g := range groups {
		if strconv.FormatUint(uint64(g.ID), 10) == text || groupName(g) == text {
			return g, nil
		}
	}
	return client.ClusterGroup{}, fmt.Errorf("there is no group %s; see countctl group list", text)
}

func (c *cli) groupTransferCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "transfer GROUP NODE",
		Short:   "Hand a group over to another of its voters",
		Example: "  countctl group transfer posts/3 n2",
		Args:    exactly(2, "a GROUP and a NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeGroup(cmd.Context(), args[0], func(server *client.Client, g client.ClusterGroup) (client.Changed, error) {
				changed, err := server.Transfer(cmd.Context(), g.ID, args[1])
				if err != nil {
					err = fmt.Errorf("cannot hand %s over to %s: %w", groupName(g), args[1], err)
				}
				return changed, err
			})
		},
	}
}

// changeGroup changes the group of a number or name, and prints the result.
func (c *cli) changeGroup(ctx context.Context, text string, change func(*client.Client, client.ClusterGroup) (client.Changed, error)) error {
	server, _, err := c.operate(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	g, err := parseGroup(ctx, server, text)
	if err != nil {
		return err
	}
	changed, err := change(server, g)
	if err != nil {
		return err
	}
	return c.print(changed, func(t *table) {
		t.row("GROUP", "NAME", "LEADER", "TARGET")
		t.row(g.ID, groupName(g), orNone(changed.Group.Leader), strings.Join(changed.Group.Target, ","))
	})
}

func (c *cli) groupMoveCommand() *cobra.Command {
	wait := moveWait
	cmd := &cobra.Command{
		Use:   "move GROUP FROM TO",
		Short: "Move a replica of a group to another node, and wait for that",
		Long: `Move a replica of a group to another node, and wait for that.

The new replica catches up and gets a vote before the old one is removed. If nodes then
have uneven numbers of replicas, the cluster evens them out again.`,
		Example: "  countctl group move posts/3 n1 n4",
		Args:    exactly(3, "a GROUP and two NODEs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeGroup(cmd.Context(), args[0], func(server *client.Client, g client.ClusterGroup) (client.Changed, error) {
				return c.moveReplica(cmd.Context(), server, g, args[1], args[2], wait)
			})
		},
	}
	waitFlag(cmd, &wait)
	return cmd
}

func (c *cli) moveReplica(ctx context.Context, server *client.Client, g client.ClusterGroup, from, to string, wait time.Duration) (client.Changed, error) {
	c.say("a replica of %s, %s rows, moves from %s to %s", groupName(g), grouped(g.Rows), from, to)
	if err := c.confirm("Move it?"); err != nil {
		return client.Changed{}, err
	}
	changed, err := server.Move(ctx, g.ID, from, to)
	if err != nil {
		return client.Changed{}, fmt.Errorf("cannot move %s from %s to %s: %w", groupName(g), from, to, err)
	}
	if c.noWait {
		return changed, nil
	}
	err = c.awaitMove(ctx, server, g, wait)
	return changed, goesOn(err, "%s moves; countctl group move %s %s %s moves it back once that is done", groupName(g), groupName(g), to, from)
}

// awaitMove waits until a group's members are its target.
func (c *cli) awaitMove(ctx context.Context, server *client.Client, g client.ClusterGroup, wait time.Duration) error {
	return c.await(ctx, wait, func(ctx context.Context) (string, error) {
		now, err := parseGroup(ctx, server, strconv.FormatUint(uint64(g.ID), 10))
		switch {
		case err != nil:
			return "", err
		case !sameNames(now.Voters, now.Target):
			return fmt.Sprintf("%s has voters %s, others %s, and is to have %s", groupName(g),
				strings.Join(now.Voters, ","), orNone(strings.Join(now.NonVoters, ",")), strings.Join(now.Target, ",")), nil
		}
		return "", nil
	})
}
