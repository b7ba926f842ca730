// Package bench owns the command bench: it checks the flags and the target, runs the load of
// internal/load, and compares the counts with the answers. It changes counts of a distant
// server only after a question.
package bench

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{benchCommand(c)}
}
