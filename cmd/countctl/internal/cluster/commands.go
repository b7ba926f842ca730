// Package cluster owns the commands of operators: the state of nodes and groups, moves,
// drains, upgrades, restarts, cold rows and verification. Each gives an order, waits until
// the cluster has carried it out, and prints how far it is.
//
// It never carries out a step itself, and keeps no state between commands.
//
// Invariant: the cluster carries out each order by itself, so an interrupted command loses
// nothing, and repeating a command changes nothing that is done.
package cluster

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{
		statusCommand(c), nodeCommand(c), groupCommand(c), coldCommand(c), rebalanceCommand(c),
		verifyCommand(c), upgradeCommand(c), rollingRestartCommand(c), debugCommand(c),
	}
}
