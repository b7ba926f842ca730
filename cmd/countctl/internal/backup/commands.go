// Package backup owns the commands backup and restore, and the manifest of a backup.
//
// Invariant: a directory with a manifest holds a whole backup, because the manifest is written
// last.
package backup

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{backupCommand(c), restoreCommand(c)}
}
