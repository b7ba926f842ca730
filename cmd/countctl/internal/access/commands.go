// Package access owns the commands about who may use a cluster: users, tokens, the audit log
// and certificates. It prints a secret once, to standard output, and stores none
// but the keys of certificates, in files that only their owner can read.
package access

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{userCommand(c), tokenCommand(c), auditCommand(c), certCommand(c)}
}
