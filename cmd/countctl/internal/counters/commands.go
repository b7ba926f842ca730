// Package counters owns the commands that read and write counts, and those on keyspaces: it
// parses ids, columns and values, and prints rows.
//
// It never repeats a write of unknown outcome under another key.
//
// Invariant: it sends each write once, under a key, and prints the key if the outcome is
// unknown, so that the caller can repeat the command under the key and count once.
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
