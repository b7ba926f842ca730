package main

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// topRowsMax bounds the rows that top keeps.
const topRowsMax = 10_000

func (c *cli) topCommand() *cobra.Command {
	var keyspace, column string
	var n int
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use:     "top --column COLUMN",
		Short:   "Print the rows with the largest counts in a column; reads the whole keyspace",
		Example: "  countctl top --column like -n 10",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if column == "" {
				return usagef("top needs --column")
			}
			if n < 1 || n > topRowsMax {
				return usagef("-n is 1 to %d, not %d", topRowsMax, n)
			}
			if err := checkReadOptions(cmd, o); err != nil {
				return err
			}
			server, err := c.connect()
			if err != nil {
				return err
			}
			defer server.Close()
			if _, err := exportColumns(cmd.Context(), server, exportFlags{keyspace: keyspace, columns: []string{column}}); err != nil {
				return err
			}
			largest := topRows{column: column, max: n}
			var read atomic.Int64
			total := c.progressTotal(cmd.Context(), server, keyspace)
			var m *meter
			patient, err := c.connectWaiting(retryForDefault, &m)
			if err != nil {
				return err
			}
			defer patient.Close()
			m = c.startMeter(func() sample { return sample{rows: read.Load(), done: read.Load(), total: total} })
			err = scan(cmd.Context(), patient, keyspace, []string{column}, o, func(page client.Page) error {
				for _, row := range page.Rows {
					largest.offer(row)
				}
				read.Add(int64(len(page.Rows)))
				return nil
			})
			m.stop()
			if err != nil {
				return err
			}
			out := rowsOutput{Results: largest.sorted()}
			return c.print(out, func(t *table) { t.ranked(column, out.Results) })
		},
	}
	c.keyspaceFlag(cmd, &keyspace)
	readFlags(cmd, &o)
	cmd.Flags().StringVar(&column, "column", "", "column to order by")
	cmd.Flags().IntVarP(&n, "rows", "n", 10, "rows to print")
	return cmd
}

func (t *table) ranked(column string, rows []client.Row) {
	t.row("RANK", "ID", strings.ToUpper(column))
	for i, row := range rows {
		value, _ := row.Counts.Get(column)
		t.row(i+1, row.ID, value)
	}
}

// topRows keeps the rows with the largest counts: a heap with the smallest of them on top.
// Of equal counts the smaller id ranks higher.
type topRows struct {
	column string
	max    int
	rows   []client.Row
}

// offer keeps the row if it ranks among the largest. A row without a count in
// the column does not.
func (h *topRows) offer(row client.Row) {
	if value, _ := row.Counts.Get(h.column); value == 0 {
		return
	}
	if len(h.rows) < h.max {
		heap.Push(h, row)
		return
	}
	if h.compare(row, h.rows[0]) < 0 {
		h.rows[0] = row
		heap.Fix(h, 0)
	}
}

// compare is negative when a ranks above b.
func (h *topRows) compare(a, b client.Row) int {
	x, _ := a.Counts.Get(h.column)
	y, _ := b.Counts.Get(h.column)
	return cmp.Or(cmp.Compare(y, x), cmp.Compare(a.ID, b.ID))
}

// sorted returns the rows from the largest down.
func (h *topRows) sorted() []client.Row {
	rows := append([]client.Row{}, h.rows...)
	slices.SortFunc(rows, h.compare)
	return rows
}

func (h *topRows) Len() int           { return len(h.rows) }
func (h *topRows) Less(i, j int) bool { return h.compare(h.rows[i], h.rows[j]) > 0 }
func (h *topRows) Swap(i, j int)      { h.rows[i], h.rows[j] = h.rows[j], h.rows[i] }
func (h *topRows) Push(row any)       { h.rows = append(h.rows, row.(client.Row)) }
func (h *topRows) Pop() any {
	last := len(h.rows) - 1
	row := h.rows[last]
	h.rows = h.rows[:last]
	return row
}
