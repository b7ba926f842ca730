package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
)

// exportFlags are the flags of export.
type exportFlags struct {
	keyspace string
	columns  []string
	read     client.ReadOptions
	retryFor time.Duration
}

// exportOutput is what export prints as JSON.
type exportOutput struct {
	File          string   `json:"file"`
	Keyspace      string   `json:"keyspace"`
	Columns       []string `json:"columns"`
	Rows          int64    `json:"rows"`
	Seconds       float64  `json:"seconds"`
	RowsPerSecond float64  `json:"rows_per_second"`
}

func (c *cli) exportCommand() *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export FILE.csv[.gz]|-",
		Short: "Write the rows of a keyspace to a CSV file",
		Long: `Write the rows of a keyspace to a CSV file, plain or gzipped: id and every
column, in order of id, rows with a count only.

The file appears whole or not at all. Rows that are written to meanwhile appear
as they were when they were read.`,
		Example: "  countctl export posts.csv.gz",
		Args:    exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkReadOptions(cmd, f.read); err != nil {
				return err
			}
			return c.exportFile(cmd.Context(), args[0], f)
		},
	}
	c.keyspaceFlag(cmd, &f.keyspace)
	readFlags(cmd, &f.read)
	cmd.Flags().StringSliceVar(&f.columns, "columns", nil, "columns to write (all when not given)")
	cmd.Flags().DurationVar(&f.retryFor, "retry-for", retryForDefault, "how long to try a request again while the server is busy or gone")
	return cmd
}

func (c *cli) exportFile(ctx context.Context, path string, f exportFlags) error {
	var m *meter
	server, err := c.connectWaiting(f.retryFor, &m)
	if err != nil {
		return err
	}
	defer server.Close()
	columns, err := exportColumns(ctx, server, f)
	if err != nil {
		return err
	}
	out, err := c.createCSV(path)
	if err != nil {
		return err
	}
	defer out.Abort()
	rows, took, err := c.exportRows(ctx, server, out, columns, f, &m)
	if err == nil {
		err = out.Commit()
	}
	if err != nil {
		return explainExport(err, path)
	}
	if path == streamName {
		return nil // nothing but the rows goes there
	}
	done := exportOutput{path, f.keyspace, columns, rows, took.Seconds(), float64(perSecond(rows, took))}
	return c.print(done, done.table)
}

func (o exportOutput) table(t *table) {
	t.row("FILE", "KEYSPACE", "ROWS", "SECONDS", "ROWS/S")
	t.row(o.File, o.Keyspace, grouped(o.Rows), fmt.Sprintf("%.1f", o.Seconds), grouped(int64(o.RowsPerSecond)))
}

func explainExport(err error, path string) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("the export was interrupted and %s was not written", path)
	}
	return err
}

func (c *cli) createCSV(path string) (*csvfile.Writer, error) {
	if path == streamName {
		return csvfile.NewWriter("standard output", c.out), nil
	}
	return csvfile.Create(path)
}

// exportColumns checks --columns, or returns all columns.
func exportColumns(ctx context.Context, server *client.Client, f exportFlags) ([]string, error) {
	keyspace, err := findKeyspace(ctx, server, f.keyspace)
	if err != nil {
		return nil, err
	}
	if len(f.columns) == 0 {
		return keyspace.Columns, nil
	}
	for i, column := range f.columns {
		if !slices.Contains(keyspace.Columns, column) {
			return nil, usagef("keyspace %s has no column %q (it has %s)", f.keyspace, column, strings.Join(keyspace.Columns, ", "))
		}
		if slices.Contains(f.columns[:i], column) {
			return nil, usagef("--columns names %q twice", column)
		}
	}
	return f.columns, nil
}

// exportRows writes header and rows, and returns how many and how long it took.
func (c *cli) exportRows(ctx context.Context, server *client.Client, out *csvfile.Writer, columns []string, f exportFlags, shown **meter) (int64, time.Duration, error) {
	if err := out.Header(append([]string{"id"}, columns...)); err != nil {
		return 0, 0, err
	}
	var written atomic.Int64
	total := rowsOf(ctx, server, f.keyspace)
	m := c.startMeter(func() sample { return sample{written.Load(), written.Load(), total} })
	*shown = m
	values := make([]int64, len(columns))
	err := scan(ctx, server, f.keyspace, columns, f.read, func(rows []client.Row) error {
		for _, row := range rows {
			if !exportValues(values, row, columns) {
				continue
			}
			if err := out.Row(uint64(row.ID), values); err != nil {
				return err
			}
			written.Add(1)
		}
		return nil
	})
	return written.Load(), m.stop(), err
}

// exportValues puts the row's counts into values, in the order of columns, and
// tells whether there is any.
func exportValues(values []int64, row client.Row, columns []string) bool {
	counted := false
	for i, column := range columns {
		if i < len(row.Counts) && row.Counts[i].Column == column {
			values[i] = row.Counts[i].Value // the server's usual order
		} else {
			values[i], _ = row.Counts.Get(column)
		}
		counted = counted || values[i] != 0
	}
	return counted
}
