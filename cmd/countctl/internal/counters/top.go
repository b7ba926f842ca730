package counters

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// topRowsMax bounds the rows that top keeps.
const topRowsMax = 10_000

func topCommand(c *cli.CLI) *cobra.Command {
	var keyspace, column string
	var n int
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use:     "top --column COLUMN",
		Short:   "Print the rows with the largest counts in a column; reads the whole keyspace",
		Example: "  countctl top --column like -n 10",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if column == "" {
				return cli.Usagef("top needs --column")
			}
			if n < 1 || n > topRowsMax {
				return cli.Usagef("-n is 1 to %d, not %d", topRowsMax, n)
			}
			server, err := c.Connect()
			if err != nil {
				return err
			}
			defer server.Close()
			if _, err := cli.FindColumn(cmd.Context(), server, keyspace, column); err != nil {
				return err
			}
			largest := topRows{column: column, max: n, rows: []client.Row{}}
			var read atomic.Int64
			total := c.ProgressTotal(cmd.Context(), server, keyspace)
			patient, err := c.ConnectWaiting(cli.RetryForDefault)
			if err != nil {
				return err
			}
			defer patient.Close()
			m := c.StartMeter(func() cli.Sample { return cli.Sample{Rows: read.Load(), Done: read.Load(), Total: total} })
			err = cli.Scan(cmd.Context(), patient, keyspace, []string{column}, o, func(page client.Page) error {
				for _, row := range page.Rows {
					largest.offer(row)
				}
				read.Add(int64(len(page.Rows)))
				return nil
			})
			m.Stop()
			if err != nil {
				return err
			}
			out := rowsOutput{Results: largest.rows}
			return c.Print(out, func(t *cli.Table) { rankedRows(t, column, out.Results) })
		},
	}
	c.KeyspaceFlag(cmd, &keyspace)
	cli.ReadFlags(cmd, &o)
	cmd.Flags().StringVar(&column, "column", "", "column to order by")
	cmd.Flags().IntVarP(&n, "rows", "n", 10, "rows to print")
	return cmd
}

func rankedRows(t *cli.Table, column string, rows []client.Row) {
	t.Row("RANK", "ID", strings.ToUpper(column))
	for i, row := range rows {
		value, _ := row.Counts.Get(column)
		t.Row(i+1, row.ID, value)
	}
}

// topRows holds the rows with the largest counts, the largest first. If counts are equal,
// the smaller id ranks higher.
type topRows struct {
	column string
	max    int
	rows   []client.Row
}

// offer keeps a row if it ranks among the largest. A row whose count is zero does not rank.
func (h *topRows) offer(row client.Row) {
	if value, _ := row.Counts.Get(h.column); value == 0 {
		return
	}
	if at, _ := slices.BinarySearchFunc(h.rows, row, h.compare); at < h.max {
		h.rows = slices.Insert(h.rows, at, row)
		h.rows = h.rows[:min(len(h.rows), h.max)]
	}
}

// compare is negative if a ranks above b.
func (h *topRows) compare(a, b client.Row) int {
	x, _ := a.Counts.Get(h.column)
	y, _ := b.Counts.Get(h.column)
	return cmp.Or(cmp.Compare(y, x), cmp.Compare(a.ID, b.ID))
}
