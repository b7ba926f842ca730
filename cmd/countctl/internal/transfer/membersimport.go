package transfer

import (
	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

// MembersImportCommand returns members import.
func MembersImportCommand(c *cli.CLI) *cobra.Command {
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
			f.about.Kind = csvimport.KindMembers
			if uncounted {
				f.about.Kind = csvimport.KindCopied
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
