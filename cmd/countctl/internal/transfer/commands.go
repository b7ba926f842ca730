// Package transfer owns the commands that copy many rows: import, replay, export, and import
// and export of members. It checks flags and files; internal/csvimport and
// internal/redisimport do the work.
//
// Invariant: a run that stopped continues where it stopped, and adds no row twice.
package transfer

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{importCommand(c), replayCommand(c), exportCommand(c)}
}
