package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// growWait is enough time for all shards to split, one after the other.
const growWait = time.Hour

func keyspaceGrowCommand(c *cli.CLI) *cobra.Command {
	var o admin.GrowOrder
	wait := growWait
	cmd := &cobra.Command{
		Use:   "grow NAME",
		Short: "Multiply the shards of a keyspace, online, or print what that would do",
		Long: `Multiply the shards of a keyspace, online, or print what that would do.

Each shard splits into --by shards. Reads and writes go on meanwhile. There is no way back:
shards cannot be merged. With --dry-run nothing changes: the command prints how evenly the
rows would be spread for 2, 3, 5 and 7, the rows of each new shard for --by, and all reasons
for which the cluster would refuse the growth; it exits 1 if there is one. The count takes
most of --timeout at most; then it is an estimate. --withdraw ends a growth of which no shard
has been split and none is being split.`,
		Example: "  countctl keyspace grow posts --dry-run\n  countctl keyspace grow posts --by 3",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("by") && (o.By < 2 || o.By > admin.GrowMax):
				return cli.Usagef("--by is from 2 to %d, not %d", admin.GrowMax, o.By)
			case o.Withdraw && (o.DryRun || o.By != 0):
				return cli.Usagef("--withdraw goes with neither --by nor --dry-run")
			}
			return nil
		},
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			if o.DryRun || o.Withdraw {
				g, err := admin.New(server).Grow(ctx, args[0], o)
				if err := c.Answer(err, "find out how keyspace "+args[0]+" grows", g, func(t *cli.Table) { growthRows(t, g) }); err != nil {
					return err
				}
				if len(g.Refused) > 0 {
					return errors.New("the cluster would refuse this growth")
				}
				return nil
			}
			g, err := growKeyspace(ctx, c, server, args[0], o, wait)
			return c.Answer(err, "grow keyspace "+args[0], g, func(t *cli.Table) { growthRows(t, g) })
		}),
	}
	cmd.Flags().IntVar(&o.By, "by", 0, "into how many shards each shard splits, 2 to 9 (default: 3)")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "print what the growth would do")
	cmd.Flags().BoolVar(&o.Withdraw, "withdraw", false, "end a growth of which no shard has been split or is being split")
	cli.WaitFlag(cmd, &wait)
	return cmd
}

// growKeyspace orders a growth, and waits for its end.
func growKeyspace(ctx context.Context, c *cli.CLI, server *client.Client, name string, o admin.GrowOrder, wait time.Duration) (admin.Growth, error) {
	k, err := cli.FindKeyspace(ctx, server, name)
	if err != nil {
		return admin.Growth{}, err
	}
	if k.Growing == nil {
		if err := c.Confirm(fmt.Sprintf("The shards of keyspace %s, now %d, multiply, and can never be merged again. Go on?", name, k.Shards)); err != nil {
			return admin.Growth{}, err
		}
	}
	o.From = k.Shards
	g, err := admin.New(server).Grow(ctx, name, o)
	if err != nil || c.NoWait {
		return g, err
	}
	err = c.Await(ctx, wait, func(ctx context.Context) (string, error) {
		k, err := cli.FindKeyspace(ctx, server, name)
		if err == nil && k.Growing == nil && k.Shards < g.To { // the node may not know of the growth yet
			k, err = cli.FindKeyspaceNow(ctx, server, name)
		}
		switch {
		case err != nil:
			return "", err
		case k.Growing != nil:
			return cli.GrowingText(k), nil
		case k.Shards < g.To:
			return "", fmt.Errorf("the growth of keyspace %s was withdrawn", name)
		}
		g = admin.Growth{Keyspace: name, Shards: k.Shards, To: k.Shards, State: admin.NotGrowing}
		return "", nil
	})
	return g, cli.GoesOn(err, "countctl status shows how far it is; countctl keyspace grow %s --withdraw ends it while no shard has been split", name)
}

// growthRows fills the table with the state of a growth, and with what a dry run has found.
func growthRows(t *cli.Table, g admin.Growth) {
	t.Row("KEYSPACE", "SHARDS", "TO", "STATE", "SPLIT")
	split := "-"
	if g.Growing != nil {
		split = fmt.Sprintf("%d of %d", g.Growing.Split, g.Shards)
	}
	t.Row(g.Keyspace, g.Shards, g.To, strings.ReplaceAll(g.State, "_", " "), split)
	if len(g.Factors) > 0 {
		t.Gap()
		rows := "ROWS OF A SHARD"
		if g.Estimated {
			rows += ", ESTIMATED"
		}
		t.Row("BY", "SHARDS", "LARGEST/EVEN", rows)
		for _, f := range g.Factors {
			t.Row(f.By, f.To, fmt.Sprintf("%.2f", f.Largest), cli.Grouped(slices.Min(f.Rows))+" to "+cli.Grouped(slices.Max(f.Rows)))
		}
	}
	if len(g.Rows) > 0 {
		t.Gap()
		t.Row("SHARD", "ROWS")
		for shard, rows := range g.Rows {
			t.Row(shard, cli.Grouped(rows))
		}
	}
	for _, list := range []struct {
		head  string
		texts []string
	}{{"WARNING", g.Warnings}, {"REFUSED, BECAUSE", g.Refused}} {
		if len(list.texts) == 0 {
			continue
		}
		t.Gap()
		t.Row(list.head)
		for _, text := range list.texts {
			t.Row(text)
		}
	}
}
