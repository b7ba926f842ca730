package data

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// ranking holds the flags of commands that print the rows with the largest counts in a column.
type ranking struct {
	keyspace, column string
	rows             int
	read             client.ReadOptions
}

func (r *ranking) register(c *cli.CLI, cmd *cobra.Command) {
	c.KeyspaceFlag(cmd, &r.keyspace)
	cli.ReadFlags(cmd, &r.read)
	cmd.Flags().StringVar(&r.column, "column", "", "column to order by")
	cmd.Flags().IntVarP(&r.rows, "rows", "n", 10, "rows to print")
}

// connect checks the flags. It returns a client that repeats a call for up to RetryForDefault,
// because the first call on a column makes the server read all rows, and the server refuses calls
// until that is done.
func (r *ranking) connect(c *cli.CLI, cmd *cobra.Command) (*client.Client, error) {
	if r.column == "" {
		return nil, cli.Usagef("%s needs --column", cmd.Name())
	}
	if r.rows < 1 || r.rows > client.RankingMax {
		return nil, cli.Usagef("-n is 1 to %d, not %d", client.RankingMax, r.rows)
	}
	return c.ConnectWaiting(cli.RetryForDefault)
}

func topCommand(c *cli.CLI) *cobra.Command {
	var r ranking
	cmd := &cobra.Command{
		Use:     "top --column COLUMN",
		Short:   "Print the rows with the largest counts in a column",
		Example: "  countctl top --column like -n 10",
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := r.connect(c, cmd)
			if err != nil {
				return err
			}
			defer server.Close()
			rows, err := server.Top(cmd.Context(), r.keyspace, r.column, r.rows, r.read)
			if err != nil {
				return err
			}
			return c.Print(rowsOutput{Results: rows}, func(t *cli.Table) {
				t.Row("RANK", "ID", strings.ToUpper(r.column))
				for i, row := range rows {
					value, _ := row.Counts.Get(r.column)
					t.Row(i+1, row.ID, value)
				}
			})
		},
	}
	r.register(c, cmd)
	return cmd
}

func hotCommand(c *cli.CLI) *cobra.Command {
	var r ranking
	var window string
	cmd := &cobra.Command{
		Use:     "hot --column COLUMN",
		Short:   "Print the rows that gained most in a column in the last minute, hour or day",
		Example: "  countctl hot --column like --window 24h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := r.connect(c, cmd)
			if err != nil {
				return err
			}
			defer server.Close()
			hot, err := server.Hot(cmd.Context(), r.keyspace, r.column, window, r.rows, r.read)
			if err != nil {
				return err
			}
			return c.Print(hot, func(t *cli.Table) {
				t.Row("RANK", "ID", "GAINED", "ERROR", strings.ToUpper(r.column))
				for i, row := range hot.Results {
					value, _ := row.Counts.Get(r.column)
					t.Row(i+1, row.ID, row.Gained, row.Error, value)
				}
			})
		},
	}
	r.register(c, cmd)
	cmd.Flags().StringVar(&window, "window", "1h", "1m, 1h or 24h")
	return cmd
}
