package data

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func membersCommand(c *cli.CLI) *cobra.Command {
	cmd := cli.CommandGroup("members", "Change and read the members of columns, such as who liked a post", membersChangeCommand(c, "add", false), membersChangeCommand(c, "remove", true),
		membersCheckCommand(c), membersListCommand(c), membersOfCommand(c), membersImportCommand(c), membersExportCommand(c))
	cmd.Long = `A column of a keyspace of counters can have members: a set of ids for each row, usually ids
of users. A member that joins adds 1 to the row's count, and one that leaves subtracts 1.
Adding a member twice, or removing one that is not in the set, changes nothing.`
	return cmd
}

func membersChangeCommand(c *cli.CLI, verb string, leave bool) *cobra.Command {
	var f cli.ColumnFlags
	short, what := "Add members to the set of a row, and print the count after each", "the members were added"
	if leave {
		short, what = "Remove members from the set of a row, and print the count after each", "the members were removed"
	}
	cmd := writeCommand(c, verb+" ID MEMBER…", short, what,
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			if len(ids)-1 > client.WriteOpsMax {
				return nil, nil, cli.Usagef("%d members are more than %d", len(ids)-1, client.WriteOpsMax)
			}
			var ops []client.MemberOp
			for _, member := range ids[1:] {
				ops = append(ops, client.MemberOp{ID: ids[0], Member: member, Leave: leave})
			}
			answer, err := f.Members(server).Change(ctx, ops, o)
			if err == nil && answer.Failed > 0 {
				err = fmt.Errorf("%d of %d members were refused: the count does not fit", answer.Failed, len(ops))
			}
			return answer, func(t *cli.Table) {
				t.Row("ID", "MEMBER", "CHANGED", "COUNT")
				for _, one := range answer.Results {
					if m := one.MemberOutcome; m != nil {
						t.Row(one.ID, m.Member, m.Changed, m.Count)
					}
				}
			}, err
		})
	cmd.Example = "  countctl members " + verb + " 4467107636950632 7 8 --column like"
	f.Register(c, cmd)
	return cmd
}

// membersCheckOutput is the JSON output of "members check".
type membersCheckOutput struct {
	Member  client.ID   `json:"member"`
	IDs     []client.ID `json:"ids"`
	Results []bool      `json:"results"` // for each id, whether the member is in its set
}

func membersCheckCommand(c *cli.CLI) *cobra.Command {
	var f cli.ColumnFlags
	cmd := readCommand(c, "check MEMBER ID…", "Print whether a member is in the sets of rows; - reads ids from standard input",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			out := membersCheckOutput{Member: ids[0], IDs: ids[1:], Results: []bool{}}
			for some := out.IDs; len(some) > 0; some = some[min(len(some), client.GetIDsMax):] {
				page, err := f.Members(server).Check(ctx, out.Member, some[:min(len(some), client.GetIDsMax)], o)
				if err != nil {
					return nil, nil, err
				}
				out.Results = append(out.Results, page...)
			}
			return out, func(t *cli.Table) {
				t.Row("ID", "MEMBER", "IN")
				for i, id := range out.IDs {
					t.Row(id, out.Member, out.Results[i])
				}
			}, nil
		})
	cmd.Example = "  countctl members check 7 4467107636950632 4467107636950633"
	f.Register(c, cmd)
	return cmd
}

// listFlags holds --limit and --cursor of the commands "members list" and "members of".
type listFlags struct {
	limit  int
	cursor string
}

func (f *listFlags) register(cmd *cobra.Command) {
	f.limit = 100
	cli.LimitFlag(cmd.Flags(), &f.limit, "lines to print, `N` from 1 to 1000 (default 100)")
	cmd.Flags().StringVar(&f.cursor, "cursor", "", "cursor that the previous page printed")
}

// If there is a next page, moreRows adds a line to the table with the flag that gets that page.
func moreRows(t *cli.Table, cursor string) {
	if cursor != "" {
		t.Gap()
		t.Row("next page: --cursor " + cursor)
	}
}

func membersListCommand(c *cli.CLI) *cobra.Command {
	var f cli.ColumnFlags
	var p listFlags
	cmd := readCommand(c, "list ID", "Print the count and the members of a row, newest first",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			page, err := f.Members(server).List(ctx, ids[0], p.cursor, p.limit, o)
			return page, func(t *cli.Table) {
				t.Row("ID", "COUNT")
				t.Row(page.ID, page.Count)
				t.Gap()
				t.Row("MEMBER", "AT")
				for _, m := range page.Members {
					t.Row(m.Member, m.At.UTC().Format(time.RFC3339Nano))
				}
				moreRows(t, page.Cursor)
			}, err
		})
	cmd.Example = "  countctl members list 4467107636950632 --limit 20"
	f.Register(c, cmd)
	p.register(cmd)
	return cmd
}

func membersOfCommand(c *cli.CLI) *cobra.Command {
	var f cli.ColumnFlags
	var p listFlags
	cmd := readCommand(c, "of MEMBER", "Print the rows that a member is in, newest first",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			page, err := f.Members(server).Of(ctx, ids[0], p.cursor, p.limit, o)
			return page, func(t *cli.Table) {
				t.Row("ID", "AT")
				for _, row := range page.IDs {
					t.Row(row.ID, row.At.UTC().Format(time.RFC3339Nano))
				}
				moreRows(t, page.Cursor)
			}, err
		})
	cmd.Example = "  countctl members of 7 --keyspace posts --column like"
	f.Register(c, cmd)
	p.register(cmd)
	return cmd
}
