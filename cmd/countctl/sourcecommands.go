package main

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// sourceCommands returns the commands of this package.
func sourceCommands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{sourceCommand(c), reconcileCommand(c)}
}
