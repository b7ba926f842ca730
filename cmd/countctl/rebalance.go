package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// planOutput is what rebalance prints as JSON.
type planOutput struct {
	Steps []client.PlanStep `json:"steps"`
}

func (c *cli) rebalanceCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "rebalance --dry-run",
		Short: "Print what the cluster would move next, and why",
		Long: `Print what the cluster would move next, and why.

The cluster carries it out by itself, a few steps at a time: this command never
changes anything. Nothing is printed for a cluster that is as it should be.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dryRun {
				return usagef("rebalance needs --dry-run: the cluster balances itself")
			}
			server, err := c.connect()
			if err != nil {
				return err
			}
			defer server.Close()
			steps, err := server.Plan(cmd.Context())
			if err != nil {
				return fmt.Errorf("cannot ask for the plan: %w", err)
			}
			return c.print(planOutput{steps}, func(t *table) { t.steps(steps) })
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done")
	return cmd
}

func (t *table) steps(steps []client.PlanStep) {
	if len(steps) == 0 {
		t.row("nothing is to be done")
		return
	}
	t.row("STEP", "OF", "CHANGE", "WHY")
	for _, s := range steps {
		of, change := s.Name, ""
		switch s.Step {
		case "place":
			change = strings.Join(append(withSign("+", s.Add), withSign("-", s.Remove)...), " ")
		case "transfer":
			change = s.From + " → " + s.To
		case "set_node_state":
			of, change = s.Node, s.State
		case "remove_node":
			of, change = s.Node, "removed"
		case "raise_version":
			of, change = "cluster version", fmt.Sprint(s.Version)
		}
		t.row(s.Step, of, change, s.Reason)
	}
}

func withSign(sign string, names []string) []string {
	signed := make([]string, len(names))
	for i, name := range names {
		signed[i] = sign + name
	}
	return signed
}
