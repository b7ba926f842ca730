package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/version"
)

// versionOutput is the JSON output of version.
type versionOutput struct {
	Client string `json:"client"`
	Server string `json:"server"` // "" when it did not answer
}

func (c *CLI) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of countctl and of the server, if it answers",
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := versionOutput{Client: version.String()}
			return c.WithServer(func(server *client.Client) (err error) {
				// countctl's own version is known whether there is a server or not.
				if out.Server, err = server.Version(cmd.Context()); err != nil {
					fmt.Fprintf(c.Err, "countctl: the server's version is not known: %s\n", c.explain(err))
				}
				return c.Print(out, func(t *Table) {
					t.Row("countctl", out.Client)
					if out.Server != "" {
						t.Row("countd", out.Server)
					}
				})
			})
		},
	}
}
