// Package social owns the commands about users: members of columns, unread numbers, notices,
// dots, feeds, outboxes, timelines and polls. It parses names and ids, makes one call of the
// client, and prints the answer.
//
// It never computes a number that it prints: servers join and count.
//
// Invariant: a write has one key, which is printed if the outcome is unknown, so that the
// caller can repeat the command under the key and change things once.
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
