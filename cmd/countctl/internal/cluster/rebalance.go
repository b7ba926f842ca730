package cluster

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

// planOutput is the JSON output of rebalance.
type planOutput struct {
	// Idle is set if no step is left, and every group has a leader that answers and its
	// intended voters.
	Idle   bool             `json:"idle"`
	Steps  []admin.PlanStep `json:"steps"`  // steps that come next
	Moving []movingGroup    `json:"moving"` // moves in progress
}

// movingGroup is a group whose voters are not those of its target, or whose leader does not answer.
type movingGroup struct {
	Group    uint32   `json:"group"`
	Name     string   `json:"name"`
	Add      []string `json:"add"`
	Remove   []string `json:"remove"`
	NoLeader bool     `json:"no_leader"` // the leader does not answer, so the voters may be outdated
}

func rebalanceCommand(c *cli.CLI) *cobra.Command {
	var dryRun bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "rebalance --dry-run",
		Short: "Print the current and the next moves of the cluster, with reasons",
		Long: `Print what the cluster is moving, what it would move next, and why.

The cluster makes these moves by itself, a few at a time: this command never changes
anything. If each group has a leader and its replicas are where they should be, it prints
"nothing to do", and "idle": true as JSON. With --wait it polls until that is so, and exits
1 if that takes too long.`,
		PreRunE: func(*cobra.Command, []string) error {
			if !dryRun {
				return cli.Usagef("rebalance needs --dry-run: the cluster balances itself")
			}
			return nil
		},
		RunE: c.OnCluster(func(ctx context.Context, server *client.Client, _ []admin.ClusterNode, _ []string) error {
			return runRebalance(ctx, c, server, wait)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the plan only")
	cli.DurationFlag(cmd.Flags(), &wait, "wait", 0, "how long to wait until the cluster has reached its target")
	return cmd
}

// runRebalance prints the plan. If wait is above 0, it first waits up to that long until the plan
// is idle.
func runRebalance(ctx context.Context, c *cli.CLI, server *client.Client, wait time.Duration) error {
	var plan planOutput
	check := func(ctx context.Context) (waitsFor string, err error) {
		if plan, err = planOf(ctx, server); err != nil || plan.Idle {
			return "", err
		}
		return fmt.Sprintf("groups that move: %d, steps that are next: %d", len(plan.Moving), len(plan.Steps)), nil
	}
	var late error
	if wait > 0 {
		if late = c.Await(ctx, wait, check); late != nil && !errors.Is(late, cli.ErrNotYet) {
			return late
		}
	} else if _, err := check(ctx); err != nil {
		return err
	}
	return errors.Join(c.Print(plan, plan.table), late)
}

// planOf requests the plan between two reads of the groups. The plan alone is not enough: it may
// have no step while a group moves, because the number of concurrent moves is bounded. A move that
// begins and ends between the two reads changes the target of its group, so planOf detects such a
// move too.
func planOf(ctx context.Context, server *client.Client) (planOutput, error) {
	before, err := admin.New(server).ClusterGroups(ctx)
	if err != nil {
		return planOutput{}, fmt.Errorf("cannot list the groups: %w", err)
	}
	steps, err := admin.New(server).Plan(ctx)
	if err != nil {
		return planOutput{}, fmt.Errorf("cannot get the plan: %w", err)
	}
	now, err := admin.New(server).ClusterGroups(ctx)
	if err != nil {
		return planOutput{}, fmt.Errorf("cannot list the groups: %w", err)
	}
	plan := planOutput{Steps: append([]admin.PlanStep{}, steps...), Moving: movingOf(now)}
	same := slices.EqualFunc(before, now, func(a, b admin.ClusterGroup) bool { return a.ID == b.ID && sameNames(a.Target, b.Target) })
	plan.Idle = same && len(steps) == 0 && len(plan.Moving) == 0 && len(movingOf(before)) == 0
	return plan, nil
}

func movingOf(groups []admin.ClusterGroup) []movingGroup {
	moving := []movingGroup{}
	for _, g := range groups {
		if g.Leader != "" && sameNames(g.Voters, g.Target) {
			continue
		}
		moving = append(moving, movingGroup{
			Group: g.ID, Name: cli.GroupName(g), NoLeader: g.Leader == "",
			Add: without(g.Target, g.Voters), Remove: without(g.Voters, g.Target),
		})
	}
	return moving
}

// without returns the names that others does not contain.
func without(names, others []string) []string {
	left := []string{}
	for _, name := range names {
		if !slices.Contains(others, name) {
			left = append(left, name)
		}
	}
	return left
}

func (p planOutput) table(t *cli.Table) {
	switch {
	case p.Idle:
		t.Row("nothing to do")
		return
	case len(p.Steps)+len(p.Moving) == 0:
		t.Row("a move has just ended")
		return
	}
	t.Row("STEP", "OF", "CHANGE", "WHY")
	for _, m := range p.Moving {
		why := "it runs"
		if m.NoLeader {
			why = "its leader does not answer"
		}
		t.Row("moving", m.Name, strings.Join(append(withSign("+", m.Add), withSign("-", m.Remove)...), " "), why)
	}
	stepRows(t, p.Steps)
}

func stepRows(t *cli.Table, steps []admin.PlanStep) {
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
		t.Row(s.Step, of, change, s.Reason)
	}
}

func withSign(sign string, names []string) []string {
	signed := make([]string, len(names))
	for i, name := range names {
		signed[i] = sign + name
	}
	return signed
}
