package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

type membersExportOutput struct {
	File     string  `json:"file"`
	Keyspace string  `json:"keyspace"`
	Column   string  `json:"column"`
	Rows     int64   `json:"rows"` // number of rows whose sets were read
	Members  int64   `json:"members"`
	Seconds  float64 `json:"seconds"`
}

type membersExport struct {
	cli.ColumnFlags
	read     client.ReadOptions
	retryFor time.Duration
	rows     atomic.Int64
	members  atomic.Int64
}

// membersExportCommand returns the command "members export".
func membersExportCommand(c *cli.CLI) *cobra.Command {
	var f membersExport
	cmd := &cobra.Command{
		Use:   "export FILE.csv[.gz]|- [--keyspace NAME]",
		Short: "Write the members of a column to a CSV file",
		Long: `Write the members of a column to a CSV file, plain or gzipped: id, member, and the time at
which the member joined. Ids ascend; the members of an id are oldest first, as members
import wants them.

It reads the sets of all rows that have a count in any column. It leaves out the members of
a row whose counts are all zero. The file appears complete or not at all; an existing file
is overwritten only with --yes. Sets that change meanwhile appear as they were when they
were read.`,
		Example: "  countctl members export likes.csv.gz",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(c, args[0]); err != nil {
				return err
			}
			return exportMembers(cmd.Context(), c, args[0], &f)
		},
	}
	f.Register(c, cmd)
	cli.ReadFlags(cmd, &f.read)
	cli.RetryFlag(cmd.Flags(), &f.retryFor)
	return cmd
}

func exportMembers(ctx context.Context, c *cli.CLI, path string, f *membersExport) error {
	var took time.Duration
	err := exportTo(c, path, f.retryFor, func(server *client.Client, out *bulk.CSVWriter) error {
		if _, err := cli.FindColumn(ctx, server, f.Keyspace, f.Column); err != nil {
			return err
		}
		if err := out.Texts("id", "member", "at"); err != nil {
			return err
		}
		total := c.ProgressTotal(ctx, server, f.Keyspace)
		m := c.StartMeter(func() cli.Sample {
			return cli.Sample{Rows: f.members.Load(), Done: f.rows.Load(), Total: total, Unit: "member"}
		})
		err := cli.Scan(ctx, server, f.Keyspace, []string{f.Column}, f.read, func(page client.Page) error {
			return f.write(ctx, server, out, page.Rows)
		})
		took = m.Stop()
		return err
	})
	if err != nil || path == cli.StreamName { // standard output may contain only the members
		return err
	}
	done := membersExportOutput{File: path, Keyspace: f.Keyspace, Column: f.Column, Rows: f.rows.Load(), Members: f.members.Load(), Seconds: took.Seconds()}
	return c.Print(done, func(t *cli.Table) {
		t.Row("FILE", "KEYSPACE", "COLUMN", "ROWS", "MEMBERS", "SECONDS")
		t.Row(done.File, done.Keyspace, done.Column, cli.Grouped(done.Rows), cli.Grouped(done.Members), fmt.Sprintf("%.1f", done.Seconds))
	})
}

// exportReads bounds the sets that an export reads concurrently and holds in memory.
const exportReads = 8

// write reads the sets of rows, up to exportReads concurrently. It writes the sets in the order of
// the rows, and each set oldest member first, as an import needs it.
func (f *membersExport) write(ctx context.Context, server *client.Client, out *bulk.CSVWriter, rows []client.Row) error {
	for some := range slices.Chunk(rows, exportReads) {
		var lists [exportReads][]client.Member
		var errs [exportReads]error
		var reads sync.WaitGroup
		for i, row := range some {
			reads.Go(func() { lists[i], errs[i] = f.list(ctx, server, row.ID) })
		}
		reads.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		for i, row := range some {
			for _, m := range slices.Backward(lists[i]) {
				if err := out.Texts(row.ID.String(), m.Member.String(), m.At.UTC().Format(time.RFC3339Nano)); err != nil {
					return err
				}
			}
			f.members.Add(int64(len(lists[i])))
			f.rows.Add(1)
		}
	}
	return nil
}

// list returns the members in the set of a row, newest first.
func (f *membersExport) list(ctx context.Context, server *client.Client, id client.ID) ([]client.Member, error) {
	var all []client.Member
	for m, err := range f.Members(server).All(ctx, id, f.read) {
		if err != nil {
			return nil, fmt.Errorf("cannot list the members of %s: %w", id, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// membersImportCommand returns the command "members import".
func membersImportCommand(c *cli.CLI) *cobra.Command {
	var f importFlags
	var uncounted bool
	cmd := &cobra.Command{
		Use:   "import FILE.csv[.gz]|-",
		Short: "Add the members in a CSV file",
		Long: `Add the members in a CSV file with a header, plain or gzipped: a row has an id and a
member. Rows join in the order of the file for each id, so a file with the oldest first
makes lists that are newest first. Members get the time of the import.

A member that is there already changes nothing, so running it again changes nothing. A run
that stopped for any reason continues where it stopped when you run it again;
FILE.members-progress has its position until it is done. Standard input cannot be read
again, so such a run cannot continue.

Each member that joins adds 1 to the count of its row. If the counts were imported before,
give --uncounted, which leaves them as they are.

A bad row stops the import with its line. With --on-error skip a bad row of x.csv or
x.csv.gz goes to x.rejects.csv with line and reason, and the exit code is 1.`,
		Example: `  countctl members import likes.csv.gz --id-column post --member-column user
  countctl members import likes.csv.gz --uncounted`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.column == "" {
				return cli.Usagef("--column is empty")
			}
			f.about.Kind = bulk.KindMembers
			if uncounted {
				f.about.Kind = bulk.KindCopied
			}
			return importFile(cmd.Context(), c, args[0], f)
		},
	}
	f.register(c, cmd, "id")
	cli.ColumnFlag(cmd, &f.column)
	cmd.Flags().StringVar(&f.member, "member-column", "member", "column of the file that holds the member")
	cmd.Flags().BoolVar(&uncounted, "uncounted", false, "leave the counts as they are")
	return cmd
}
