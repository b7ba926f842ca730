// Package social owns the commands about users: members of columns, unread numbers, notices,
// dots, feeds, outboxes, timelines and polls.
package social

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{
		membersCommand(c), unreadCommand(c), noticeCommand(c), dotCommand(c), feedCommand(c),
		outboxCommand(c), timelineCommand(c), pollCommand(c),
	}
}
