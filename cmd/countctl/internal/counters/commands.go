// Package counters owns the commands that read and write counts, and those on keyspaces. It
// sends each write once, under a key, and prints the key if the outcome is unknown.
package counters

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{
		getCommand(c), mgetCommand(c), topCommand(c), incrCommand(c), opsCommand(c), setCommand(c),
		deleteCommand(c), keyspaceCommand(c),
	}
}
