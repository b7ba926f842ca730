package cluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/cluster"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// recoverOutput is the JSON output of recover.
type recoverOutput struct {
	cluster.Recovery
	Resumed bool `json:"resumed"` // the command completed an interrupted recovery
}

// typedDigits is how much of the cluster's id recover asks for: the node's directory does not
// have the --cluster-name.
const typedDigits = 8

func recoverCommand(c *cli.CLI) *cobra.Command {
	var dirs []string
	var acceptLost bool
	cmd := &cobra.Command{
		Use:   "recover --data-dir DIR",
		Short: "Let the surviving replicas continue after a majority was lost for good; needs no server",
		Long: `Let the surviving replicas continue after a majority was lost for good; needs no server.

ACKNOWLEDGED WRITES MAY BE LOST: those that only lost nodes had. If the disks of lost nodes may
come back, do not run this: start the nodes instead.

1. Isolate the lost nodes: cut them off from the network, or destroy their disks. If several of
   them start again, they serve the old cluster.
2. Stop countd on all survivors, and keep it from starting: systemctl disable --now countd.
3. Copy their data directories to one machine twice, and keep one copy aside. The command needs a
   little free space. If a disk is full, it says so and waits until you free some.
4. Give each directory with its own --data-dir. For each group, the newest replica in them becomes
   the only voter. The cluster gets a new id: nodes whose directory is not given, and all copies
   made before, are refused. If the command is interrupted, run it again. countd does not start
   before it is complete.
5. Put the directories back, and start the nodes: systemctl enable --now countd. Then start new
   nodes, which join.
6. Review users, tokens, keyspaces and sources. The last changes may be undone: a deleted
   user may be back. Columns that only rows still had are named recovered_N. Users of a channel
   whose last notices are lost may not see as many new ones. Text ids that only lost nodes had
   begin again with zeros, and their counts show an empty id. A backup made before can be
   restored as usual, but if such ids were counted since, only into a new cluster.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if len(dirs) == 0 {
				return cli.Usagef("recover needs --data-dir")
			}
			said := ""
			survivors, err := cluster.OpenSurvivors(dirs, func(err error) {
				if said != err.Error() {
					said = err.Error()
					c.Say("waiting, because disk space or file descriptors are missing: %s", said)
				}
			})
			if err != nil {
				return err
			}
			defer survivors.Close()
			return runRecover(c, survivors, acceptLost)
		},
	}
	cmd.Flags().StringArrayVar(&dirs, "data-dir", nil, "data directory of a surviving node; may be repeated")
	cmd.Flags().BoolVar(&acceptLost, "accept-lost", false, "recover although the directories lack all replicas of some shards, which stay without a leader")
	return cmd
}

func runRecover(c *cli.CLI, survivors *cluster.Survivors, acceptLost bool) error {
	plan, resumed, err := survivors.Plan(time.Now())
	if err != nil {
		return err
	}
	for i := range plan.Groups {
		c.Say("%s", fateOf(&plan.Groups[i]))
	}
	c.Say("survivors: %s; lost: %s", strings.Join(plan.Nodes, ", "), strings.Join(plan.Lost, ", "))
	if lost := plan.LostGroups(); len(lost) > 0 && !acceptLost {
		return fmt.Errorf("no directory has a replica of %s: give the directories of all survivors, or --accept-lost to leave these shards without a leader", strings.Join(lost, ", "))
	}
	if resumed {
		c.Say("this completes the recovery that was begun at %s", plan.At.Format(time.RFC3339))
	}
	c.Say("ACKNOWLEDGED WRITES MAY BE LOST, if only lost nodes had them. The lost nodes can never return.")
	if err := c.ConfirmTyped("This recovers cluster "+plan.From+".", plan.From[:typedDigits]); err != nil {
		return err
	}
	if err := survivors.Recover(plan); err != nil {
		return err
	}
	return c.Print(recoverOutput{*plan, resumed}, func(t *cli.Table) {
		t.Row("RECOVERED", "CLUSTER", "GROUPS")
		t.Row(strings.Join(plan.Nodes, ","), plan.To, len(plan.Groups))
	})
}

// fateOf describes what happens to a group, and what of it may be missing.
func fateOf(g *cluster.RecoveredGroup) string {
	if len(g.Damaged) > 0 {
		whole := *g
		whole.Damaged = nil
		return fmt.Sprintf("%s; DAMAGED on %s, which deletes its replica at its next start", fateOf(&whole), strings.Join(g.Damaged, ", "))
	}
	switch {
	case g.Node == "":
		return fmt.Sprintf("%s: LOST, no directory has a replica", g.Name())
	case g.Kept:
		return fmt.Sprintf("%s: nothing is missing, a majority of its voters is here", g.Name())
	}
	written := "at an unknown time"
	if !g.Written.IsZero() {
		written = "written " + g.Written.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s: %s becomes the only voter, with entries up to %d, %s (committed at least up to %d); later ones are lost", g.Name(), g.Node, g.Index, written, g.Committed)
}
