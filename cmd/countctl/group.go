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

// groupsOutput is what group list prints as JSON.
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
		t.row(g.ID, groupName(g), orNone(g.Leader), g.Term, strings.Join(g.Voters, ","), orNone(strings.Join(g.NonVoters, ",")),
			target, lagOf(g), grouped(g.Rows), grouped(g.Bytes))
	}
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

// lagOf is how far the replica that is furthest behind is.
func lagOf(g client.ClusterGroup) uint64 {
	lag := uint64(0)
	for _, r := range g.Replicas {
		lag = max(lag, r.Lag)
	}
	return lag
}

// parseGroup takes a group by number or by name, such as posts/3.
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
	return client.ClusterGroup{}, fmt.Errorf("there is no group %s; countctl group list shows those there are", text)
}

func (c *cli) groupTransferCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "transfer GROUP NODE",
		Short:   "Hand a group over to another of its voters",
		Example: "  countctl group transfer posts/3 n2",
		Args:    exactly(2, "a GROUP and a NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, _, err := c.operate(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			g, err := parseGroup(cmd.Context(), server, args[0])
			if err != nil {
				return err
			}
			changed, err := server.Transfer(cmd.Context(), g.ID, args[1])
			if err != nil {
				return fmt.Errorf("cannot hand %s over to %s: %w", groupName(g), args[1], err)
			}
			return c.printGroup(g, changed)
		},
	}
}

func (c *cli) printGroup(g client.ClusterGroup, changed client.Changed) error {
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

The new one catches up and gets a vote before the old one is taken out. Where
nodes then have unevenly many replicas, the cluster evens them out again.`,
		Example: "  countctl group move posts/3 n1 n4",
		Args:    exactly(3, "a GROUP and two NODEs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, _, err := c.operate(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			g, err := parseGroup(cmd.Context(), server, args[0])
			if err != nil {
				return err
			}
			c.say("a replica of %s, %s rows, moves from %s to %s", groupName(g), grouped(g.Rows), args[1], args[2])
			if err := c.confirm("Move it?"); err != nil {
				return err
			}
			changed, err := server.Move(cmd.Context(), g.ID, args[1], args[2])
			if err != nil {
				return fmt.Errorf("cannot move %s from %s to %s: %w", groupName(g), args[1], args[2], err)
			}
			if !c.noWait {
				if err := c.awaitMove(cmd.Context(), server, g, wait); err != nil {
					return err
				}
			}
			return c.printGroup(g, changed)
		},
	}
	waitFlag(cmd, &wait)
	return cmd
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
