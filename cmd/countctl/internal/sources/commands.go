// Package sources owns the commands on sources, which are queues that the cluster counts, and
// reconcile, which compares counts with a truth. internal/reconcile does the arithmetic; this
// package reads the truth, asks, and sends the corrections.
//
// It never reads a queue and never moves a position: servers do.
//
// Invariant: reconcile sends a correction only for a difference that it has printed, and only
// once the operator has agreed.
package sources

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{sourceCommand(c), reconcileCommand(c)}
}
