package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/program"
)

// argsOf returns a check of the number of arguments. use lists the arguments after the command's
// name, up to the first flag. In it, WORD is one argument, WORD… is one or more, [WORD] is at most
// one, and [WORD…] is any number.
func argsOf(use string) cobra.PositionalArgs {
	_, line, _ := strings.Cut(use, " ")
	words := strings.Fields(line)
	if i := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(strings.TrimPrefix(word, "["), "--") }); i >= 0 {
		words = words[:i]
	}
	if len(words) == 0 {
		return func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !cmd.HasSubCommands() {
				return Usagef("%s takes %s, not %q", cmd.Name(), cmp.Or(line, "no arguments"), strings.Join(args, " "))
			}
			return cobra.NoArgs(cmd, args)
		}
	}
	least, most := 0, len(words)
	for _, word := range words {
		if !strings.HasPrefix(word, "[") {
			least++
		}
		if strings.HasSuffix(strings.TrimSuffix(word, "]"), "…") {
			most = math.MaxInt
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return Usagef("%s takes %s, not %s", cmd.Name(), line, Counted(len(args), "argument"))
		}
		return nil
	}
}

// checkArgs sets the check of argsOf for each command below root that has no check of its
// arguments.
func checkArgs(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Args == nil {
			cmd.Args = argsOf(cmd.Use)
		}
		checkArgs(cmd)
	}
}

// DurationFlag adds a flag for a duration, which also accepts days, such as 7d.
func DurationFlag(flags *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	flags.Var(program.DurationFlag{D: d}, name, usage)
	if value == 0 {
		flags.Lookup(name).DefValue = "" // so that the help shows no default
	}
}

// limitMax is the highest --limit. The API has the same bound.
const limitMax = 1000

// LimitFlag adds --limit, the size of a page. If the flag is absent, *limit is unchanged.
func LimitFlag(flags *pflag.FlagSet, limit *int, usage string) {
	flags.Func("limit", usage, func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > limitMax {
			return fmt.Errorf("not an integer from 1 to %d", limitMax)
		}
		*limit = n
		return nil
	})
}

// ReadFlags adds the flags that read commands share, and a check of their values.
func ReadFlags(cmd *cobra.Command, o *client.ReadOptions) {
	cmd.Flags().StringVar(&o.Consistency, "consistency", "", "stale, bounded or linearizable (the server's default is bounded)")
	DurationFlag(cmd.Flags(), &o.MaxStaleness, "max-staleness", 0, "maximum age of a bounded read (the server's default is 1s)")
	cmd.Flags().StringVar(&o.Token, "token", "", "token of a write that the read must see")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains([]string{"", "stale", "bounded", "linearizable"}, o.Consistency) {
			return Usagef("--consistency is stale, bounded or linearizable, not %q", o.Consistency)
		}
		if cmd.Flags().Changed("max-staleness") && o.MaxStaleness <= 0 {
			return Usagef("--max-staleness is above 0 and up to 1h, not %v", o.MaxStaleness)
		}
		return nil
	}
}

// CommandGroup returns a command that does nothing itself and has sub-commands.
func CommandGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	names := make([]string, len(commands))
	for i, sub := range commands {
		names[i], _, _ = strings.Cut(sub.Use, " ")
	}
	last := len(names) - 1
	oneOf := strings.Join(names[:last], ", ")
	if last > 0 {
		oneOf += " or "
	}
	cmd := &cobra.Command{
		Use: use, Short: short,
		RunE: func(*cobra.Command, []string) error { return Usagef("%s needs %s%s", use, oneOf, names[last]) },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// ParseOp parses an op in the form ID COLUMN=N….
func ParseOp(args []string) (client.Op, error) {
	id, err := client.ParseID(args[0])
	if err != nil {
		return client.Op{}, Usagef("the id %v", err)
	}
	op := client.Op{ID: id}
	for _, arg := range args[1:] {
		column, number, ok := strings.Cut(arg, "=")
		value, err := strconv.ParseInt(number, 10, 64)
		if !ok || column == "" || err != nil {
			return client.Op{}, Usagef("%q is not COLUMN=N with N a signed 64-bit integer", arg)
		}
		if _, twice := op.Cells.Get(column); twice {
			return client.Op{}, Usagef("column %s is named twice", column)
		}
		op.Cells = append(op.Cells, client.Count{Column: column, Value: value})
	}
	return op, nil
}

// IDs parses the arguments as ids. The argument - stands for the ids on standard input.
func (c *CLI) IDs(args []string) ([]client.ID, error) {
	var ids []client.ID
	for _, arg := range args {
		if arg == "-" {
			more, err := scanIDs(c.In)
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
			continue
		}
		id, err := client.ParseID(arg)
		if err != nil {
			return nil, Usagef("the id %v", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// scanIDs reads ids that are separated by white space.
func scanIDs(in io.Reader) ([]client.ID, error) {
	var ids []client.ID
	words := bufio.NewScanner(in)
	words.Split(bufio.ScanWords)
	for words.Scan() {
		id, err := client.ParseID(words.Text())
		if err != nil {
			return nil, fmt.Errorf("standard input: id %d: %w", len(ids)+1, err)
		}
		if ids = append(ids, id); len(ids) > stdinIDsMax {
			return nil, fmt.Errorf("standard input holds more than %d ids; split it", stdinIDsMax)
		}
	}
	if err := words.Err(); err != nil {
		return nil, fmt.Errorf("cannot read ids from standard input: %w", err)
	}
	if len(ids) == 0 {
		return nil, errors.New("standard input holds no ids")
	}
	return ids, nil
}

// stdinIDsMax bounds the ids that one command reads from standard input, because the command holds
// its whole answer in memory.
const stdinIDsMax = 1_000_000
