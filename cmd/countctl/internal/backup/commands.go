// Package backup owns the commands backup and restore, the manifest of a backup, and the
// order in which keyspaces are saved: one that refers to another is saved before it.
//
// It never interprets the rows of a shard: files have the bytes of a snapshot, which servers
// write and check. It never writes into a keyspace that has rows unless it is told to.
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
