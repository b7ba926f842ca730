package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// membersCommand groups the commands about members of columns.
func (c *cli) membersCommand() *cobra.Command {
	cmd := commandGroup("members", "Who did it: the members of a column's sets", c.membersChangeCommand("add", false), c.membersChangeCommand("remove", true),
		c.membersCheckCommand(), c.membersListCommand(), c.membersOfCommand(), c.membersImportCommand(), c.membersExportCommand())
	cmd.Long = `A column of a keyspace of counters can have members: a set of ids, usually of users, for
each row. A member that joins adds 1 to the row's count, one that leaves subtracts 1, and
one that was there already, or was not, changes nothing.`
	return cmd
}

// columnFlags are the flags that name the sets of a command.
type columnFlags struct{ keyspace, column string }

func (f *columnFlags) register(c *cli, cmd *cobra.Command) {
	c.keyspaceFlag(cmd, &f.keyspace)
	columnFlag(cmd, &f.column)
}

func columnFlag(cmd *cobra.Command, column *string) {
	cmd.Flags().StringVar(column, "column", "like", "column whose members are meant")
}

func (f *columnFlags) of(server *client.Client) client.Members {
	return server.Members(f.keyspace, f.column)
}

func (c *cli) membersChangeCommand(verb string, leave bool) *cobra.Command {
	var f columnFlags
	short, what := "Add members to the set of a row, and print the count after each", "the members were added"
	if leave {
		short, what = "Remove members from the set of a row, and print the count after each", "the members were removed"
	}
	cmd := c.unreadWrite(verb+" ID MEMBER…", short, what, atLeast(2, "ID and one MEMBER or more"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			ids, err := c.ids(args)
			if err != nil {
				return nil, nil, err
			}
			if len(ids)-1 > client.WriteOpsMax {
				return nil, nil, usagef("%d members are more than %d", len(ids)-1, client.WriteOpsMax)
			}
			var ops []client.MemberOp
			for _, member := range ids[1:] {
				ops = append(ops, client.MemberOp{ID: ids[0], Member: member, Leave: leave})
			}
			answer, err := f.of(server).Change(ctx, ops, o)
			if err == nil && answer.Failed > 0 {
				err = fmt.Errorf("%d of %d members were refused: the count does not fit", answer.Failed, len(ops))
			}
			return answer, func(t *table) {
				t.row("ID", "MEMBER", "CHANGED", "COUNT")
				for _, one := range answer.Results {
					if m := one.MemberOutcome; m != nil {
						t.row(one.ID, m.Member, m.Changed, m.Count)
					}
				}
			}, err
		})
	cmd.Example = "  countctl members " + verb + " 4467107636950632 7 8 --column like"
	f.register(c, cmd)
	return cmd
}

// checkOutput is the JSON output of members check.
type checkOutput struct {
	Member  client.ID   `json:"member"`
	IDs     []client.ID `json:"ids"`
	Results []bool      `json:"results"` // in the order of ids
}

func (c *cli) membersCheckCommand() *cobra.Command {
	var f columnFlags
	cmd := c.unreadRead("check MEMBER ID…", "Print whether a member is in the sets of rows; - reads ids from standard input", atLeast(2, "MEMBER and one ID or more"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			ids, err := c.ids(args)
			if err != nil {
				return nil, nil, err
			}
			out := checkOutput{Member: ids[0], IDs: ids[1:], Results: []bool{}}
			for some := out.IDs; len(some) > 0; some = some[min(len(some), client.GetIDsMax):] {
				page, err := f.of(server).Check(ctx, out.Member, some[:min(len(some), client.GetIDsMax)], o)
				if err != nil {
					return nil, nil, err
				}
				out.Results = append(out.Results, page...)
			}
			return out, func(t *table) {
				t.row("ID", "MEMBER", "IN")
				for i, id := range out.IDs {
					t.row(id, out.Member, out.Results[i])
				}
			}, nil
		})
	cmd.Example = "  countctl members check 7 4467107636950632 4467107636950633"
	f.register(c, cmd)
	return cmd
}

// listFlags select the lines that list and of print.
type listFlags struct {
	limit  int
	cursor string
}

func (f *listFlags) register(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.limit, "limit", 100, "lines to print, at most 1,000")
	cmd.Flags().StringVar(&f.cursor, "cursor", "", "cursor that the page before printed")
}

// more adds how to get the next page.
func (t *table) more(cursor string) {
	if cursor != "" {
		t.gap()
		t.line("for more: --cursor " + cursor)
	}
}

// joinedAt formats when a member joined.
func joinedAt(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

func (c *cli) membersListCommand() *cobra.Command {
	var f columnFlags
	var p listFlags
	cmd := c.unreadRead("list ID", "Print the count and the members of a row, newest first", exactly(1, "one ID"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			ids, err := c.ids(args)
			if err != nil {
				return nil, nil, err
			}
			page, err := f.of(server).List(ctx, ids[0], p.cursor, p.limit, o)
			return page, func(t *table) {
				t.row("ID", "COUNT")
				t.row(page.ID, page.Count)
				t.gap()
				t.row("MEMBER", "AT")
				for _, m := range page.Members {
					t.row(m.Member, joinedAt(m.At))
				}
				t.more(page.Cursor)
			}, err
		})
	cmd.Example = "  countctl members list 4467107636950632 --limit 20"
	f.register(c, cmd)
	p.register(cmd)
	return cmd
}

func (c *cli) membersOfCommand() *cobra.Command {
	var f columnFlags
	var p listFlags
	cmd := c.unreadRead("of MEMBER", "Print the rows that a member is in, newest first", exactly(1, "one MEMBER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			ids, err := c.ids(args)
			if err != nil {
				return nil, nil, err
			}
			page, err := f.of(server).Of(ctx, ids[0], p.cursor, p.limit, o)
			return page, func(t *table) {
				t.row("ID", "AT")
				for _, row := range page.IDs {
					t.row(row.ID, joinedAt(row.At))
				}
				t.more(page.Cursor)
			}, err
		})
	cmd.Example = "  countctl members of 7 --keyspace posts --column like"
	f.register(c, cmd)
	p.register(cmd)
	return cmd
}

func (c *cli) membersImportCommand() *cobra.Command {
	var f importFlags
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
		Args: exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.sets.Column == "" {
				return usagef("--column is empty")
			}
			f.kind = membersKind(f.sets.Uncounted)
			return c.importFile(cmd.Context(), args[0], f)
		},
	}
	f.register(c, cmd, "id")
	columnFlag(cmd, &f.sets.Column)
	cmd.Flags().StringVar(&f.member, "member-column", "member", "column of the file that holds the member")
	cmd.Flags().BoolVar(&f.sets.Uncounted, "uncounted", false, "leave the counts as they are")
	return cmd
}
