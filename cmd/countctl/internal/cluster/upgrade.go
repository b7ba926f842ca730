package cluster

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

type upgradeOutput struct {
	admin.ClusterVersion
	Changed bool          `json:"changed"`
	Nodes   []nodeVersion `json:"nodes"`
	Final   bool          `json:"final"` // the cluster version is the highest that all nodes support
}

type nodeVersion struct {
	Node       string `json:"node"`
	Version    string `json:"version"` // version of the node's program
	VersionMax int    `json:"version_max"`
}

func upgradeCommand(c *cli.CLI) *cobra.Command {
	cmd := cli.CommandGroup("upgrade", "Show, hold and raise the cluster version, which enables new formats", &cobra.Command{
		Use:   "status",
		Short: "Print the cluster version and the versions that each node supports",
		RunE: onVersion(c, func(ctx context.Context, server *client.Client) (admin.Changed, error) {
			version, err := readVersion(ctx, server)
			return admin.Changed{Version: &version}, err
		}),
	}, upgradeHoldCommand(c), &cobra.Command{
		Use:   "finalize",
		Short: "Release the cluster version and raise it for good to the highest that all nodes support",
		RunE: onVersion(c, func(ctx context.Context, server *client.Client) (changed admin.Changed, err error) {
			now, err := readVersion(ctx, server)
			if err == nil {
				err = confirmFinal(c, now)
			}
			if err != nil {
				return changed, err
			}
			if changed, err = admin.New(server).FinalizeVersion(ctx); err != nil {
				err = fmt.Errorf("cannot raise the cluster version: %w", err)
			}
			return changed, err
		}),
	})
	cmd.Long = `Show, hold and raise the cluster version, which enables new formats.

It rises automatically once all nodes support the next version, and never falls: from then
on programs of the previous version cannot start. Hold it before an upgrade, so that you can
go back, and finalize it once the new programs have proved themselves.`
	return cmd
}

func upgradeHoldCommand(c *cli.CLI) *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "Keep the cluster version, whatever the nodes support",
		RunE: onVersion(c, func(ctx context.Context, server *client.Client) (admin.Changed, error) {
			changed, err := admin.New(server).HoldVersion(ctx, !off)
			if err != nil {
				err = fmt.Errorf("cannot hold the cluster version: %w", err)
			}
			return changed, err
		}),
	}
	cmd.Flags().BoolVar(&off, "off", false, "release it, so that it rises by itself again")
	return cmd
}

func readVersion(ctx context.Context, server *client.Client) (admin.ClusterVersion, error) {
	version, err := admin.New(server).ClusterVersion(ctx)
	if err != nil {
		err = fmt.Errorf("cannot read the cluster version: %w", err)
	}
	return version, err
}

// onVersion returns a RunE function for a command that reads or changes the cluster version. The
// function calls act and prints the version in the result.
func onVersion(c *cli.CLI, act func(context.Context, *client.Client) (admin.Changed, error)) func(*cobra.Command, []string) error {
	return c.OnCluster(func(ctx context.Context, server *client.Client, nodes []admin.ClusterNode, _ []string) error {
		changed, err := act(ctx, server)
		if err != nil {
			return err
		}
		out := upgradeOutput{ClusterVersion: *changed.Version, Changed: changed.Changed, Nodes: []nodeVersion{}}
		out.Final = out.Version == out.Max
		for _, n := range nodes {
			out.Nodes = append(out.Nodes, nodeVersion{n.ID, n.Version, n.VersionMax})
		}
		return c.Print(out, out.table)
	})
}

func (o upgradeOutput) table(t *cli.Table) {
	t.Row("CLUSTER VERSION", "NODES SPEAK", "HELD")
	t.Row(o.Version, o.Max, o.Held)
	t.Gap()
	t.Row("NODE", "VERSION", "SPEAKS")
	for _, n := range o.Nodes {
		t.Row(n.Node, n.Version, n.VersionMax)
	}
}

// confirmFinal prints how the cluster version would change. If it would change, confirmFinal asks
// for confirmation.
func confirmFinal(c *cli.CLI, now admin.ClusterVersion) error {
	switch {
	case now.Version < now.Max:
		c.Say("the cluster version rises from %d to %d: older programs can no longer be used", now.Version, now.Max)
		return c.ConfirmRisk("Raise it?")
	case now.Held:
		c.Say("the cluster version stays %d, the highest that all nodes support, and is released: it rises by itself as soon as all nodes support the next one, and then older programs can no longer be used", now.Version)
		return c.ConfirmRisk("End the hold?")
	}
	c.Say("nothing to do: the cluster version is %d, the highest that all nodes support", now.Version)
	return nil
}
