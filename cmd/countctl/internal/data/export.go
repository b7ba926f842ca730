package data

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

type exportFlags struct {
	keyspace string
	columns  []string
	read     client.ReadOptions
	retryFor time.Duration
}

// errRowsMissing is returned if an export has left out shards.
var errRowsMissing = errors.New("rows are missing")

type exportOutput struct {
	File          string   `json:"file"`
	Keyspace      string   `json:"keyspace"`
	Columns       []string `json:"columns"`
	Rows          int64    `json:"rows"`
	Seconds       float64  `json:"seconds"`
	RowsPerSecond float64  `json:"rows_per_second"`
	// UnreadableShards are the shards whose rows are not in the file.
	UnreadableShards []int `json:"unreadable_shards,omitempty"`
}

func exportCommand(c *cli.CLI) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export FILE.csv[.gz]|- [--keyspace NAME]",
		Short: "Write the rows of a keyspace to a CSV file",
		Long: `Write the rows of a keyspace to a CSV file, plain or gzipped: id and all columns, in
ascending id order, without rows whose counts are all zero.

The file appears complete or not at all; an existing file is overwritten only with
--yes. With --skip-unreadable the file has the rows of the readable shards, and
standard error names the others. Rows that are written to meanwhile appear as they
were when they were read.`,
		Example: "  countctl export posts.csv.gz",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.read.SkipUnreadable && f.read.Consistency != "stale" {
				return cli.Usagef("--skip-unreadable needs --consistency stale: any other read waits for a leader")
			}
			if err := checkOutput(c, args[0]); err != nil {
				return err
			}
			return exportFile(cmd.Context(), c, args[0], f)
		},
	}
	c.KeyspaceFlag(cmd, &f.keyspace)
	cli.ReadFlags(cmd, &f.read)
	cmd.Flags().StringSliceVar(&f.columns, "columns", nil, "columns to write (default: all)")
	cmd.Flags().BoolVar(&f.read.SkipUnreadable, "skip-unreadable", false, "leave out shards without a living replica, name them, and exit 1")
	cli.RetryFlag(cmd.Flags(), &f.retryFor)
	return cmd
}

// checkOutput returns an error if path looks like the name of a keyspace. Without --yes, it also
// returns an error if the file exists.
func checkOutput(c *cli.CLI, path string) error {
	if path == cli.StreamName {
		return nil
	}
	if !strings.ContainsAny(path, "./"+string(filepath.Separator)) {
		return cli.Usagef("%q is no name of a CSV file: give %s.csv, ./%s, or - for standard output, and the keyspace by --keyspace", path, path, path)
	}
	return c.RefuseExisting(path)
}

// exportTo creates a CSV file and calls write to fill it. The file appears only when it is
// complete.
func exportTo(c *cli.CLI, path string, retryFor time.Duration, write func(*client.Client, *bulk.CSVWriter) error) error {
	server, err := c.ConnectWaiting(retryFor)
	if err != nil {
		return err
	}
	defer server.Close()
	out := bulk.NewCSVWriter("standard output", c.Out)
	if path != cli.StreamName {
		if out, err = bulk.CreateCSV(path); err != nil {
			return err
		}
	}
	defer out.Abort()
	if err = write(server, out); err == nil {
		err = out.Commit()
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("the export was interrupted and %s was not written", path)
	}
	if refused := new(client.Error); errors.As(err, &refused) && refused.Code == "no_quorum" {
		return fmt.Errorf("%w; --consistency stale --skip-unreadable writes what can be read", err)
	}
	return err
}

func exportFile(ctx context.Context, c *cli.CLI, path string, f exportFlags) error {
	done := exportOutput{File: path, Keyspace: f.keyspace}
	err := exportTo(c, path, f.retryFor, func(server *client.Client, out *bulk.CSVWriter) (err error) {
		if done.Columns, err = exportColumns(ctx, server, f); err != nil {
			return err
		}
		return exportRows(ctx, c, server, out, f, &done)
	})
	if err != nil {
		return err
	}
	if path != cli.StreamName { // standard output may contain only the rows
		err = c.Print(done, done.table)
	}
	return errors.Join(err, missingError(f.keyspace, done.UnreadableShards))
}

// missingError returns an error that names the shards that an export has left out, or nil if there
// are none.
func missingError(keyspace string, shards []int) error {
	if len(shards) == 0 {
		return nil
	}
	names := make([]string, len(shards))
	for i, shard := range shards {
		names[i] = fmt.Sprintf("%s/%d", keyspace, shard)
	}
	return fmt.Errorf("%w: no living node has a replica of %s", errRowsMissing, strings.Join(names, ", "))
}

func (o exportOutput) table(t *cli.Table) {
	t.Row("FILE", "KEYSPACE", "ROWS", "SECONDS", "ROWS/S")
	t.Row(o.File, o.Keyspace, cli.Grouped(o.Rows), fmt.Sprintf("%.1f", o.Seconds), cli.Grouped(int64(o.RowsPerSecond)))
}

func exportColumns(ctx context.Context, server *client.Client, f exportFlags) ([]string, error) {
	keyspace, err := cli.FindCounters(ctx, server, f.keyspace)
	if err != nil {
		return nil, err
	}
	if len(f.columns) == 0 {
		return keyspace.Columns, nil
	}
	for i, column := range f.columns {
		if err := cli.HasColumn(keyspace, column); err != nil {
			return nil, err
		}
		if slices.Contains(f.columns[:i], column) {
			return nil, cli.Usagef("--columns names %q twice", column)
		}
	}
	return f.columns, nil
}

// exportRows writes the header and the rows, and records the number of rows in output.
func exportRows(ctx context.Context, c *cli.CLI, server *client.Client, out *bulk.CSVWriter, f exportFlags, output *exportOutput) error {
	if err := out.Texts(append([]string{"id"}, output.Columns...)...); err != nil {
		return err
	}
	var written atomic.Int64
	total := c.ProgressTotal(ctx, server, f.keyspace)
	m := c.StartMeter(func() cli.Sample { return cli.Sample{Rows: written.Load(), Done: written.Load(), Total: total} })
	values := make([]int64, len(output.Columns))
	err := cli.Scan(ctx, server, f.keyspace, output.Columns, f.read, func(page client.Page) error {
		output.UnreadableShards = append(output.UnreadableShards, page.Unreadable...)
		for _, row := range page.Rows {
			if !exportValues(values, row, output.Columns) {
				continue
			}
			if err := out.Row(row.ID, values); err != nil {
				return err
			}
			written.Add(1)
		}
		return nil
	})
	took := m.Stop()
	output.Rows, output.Seconds, output.RowsPerSecond = written.Load(), took.Seconds(), float64(cli.PerSecond(written.Load(), took))
	slices.Sort(output.UnreadableShards)
	output.UnreadableShards = slices.Compact(output.UnreadableShards)
	return err
}

// exportValues sets values to the row's counts, in the order of columns. It reports whether any of
// these counts is not 0.
func exportValues(values []int64, row client.Row, columns []string) bool {
	counted := false
	for i, column := range columns {
		if i < len(row.Counts) && row.Counts[i].Column == column {
			values[i] = row.Counts[i].Value // usual case: the server answers in the order of columns
		} else {
			values[i], _ = row.Counts.Get(column)
		}
		counted = counted || values[i] != 0
	}
	return counted
}
