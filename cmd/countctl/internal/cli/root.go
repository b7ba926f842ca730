package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/program"
)

// Commands is a function that returns the commands of a package.
type Commands func(*CLI) []*cobra.Command

// Main executes the process's command line and ends the process.
func Main(groups ...Commands) {
	// The first signal cancels ctx, and stop then restores the default handling of signals. So a
	// second signal kills the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(Run(ctx, os.Args[1:], Terminal{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Getenv}, groups...))
}

// Run executes a command line and returns the exit code.
func Run(ctx context.Context, args []string, t Terminal, groups ...Commands) int {
	c := &CLI{Terminal: t, Interrupted: ctx.Done()}
	root := c.Root(groups...)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var usage *UsageError
	switch {
	case err == nil:
		return ExitOK
	case !c.understood || errors.As(err, &usage) || isUsage(err):
		fmt.Fprintf(t.Err, "countctl: %v; see %s --help\n", err, cmd.CommandPath())
		return ExitUsage
	default:
		fmt.Fprintf(t.Err, "countctl: %s\n", c.explain(err))
		return ExitFail
	}
}

// Root returns the command countctl, whose sub-commands are those of all groups.
func (c *CLI) Root(groups ...Commands) *cobra.Command {
	root := &cobra.Command{
		Use:   "countctl",
		Short: "Work on a countd server",
		Long: `countctl operates a countd server through its HTTP API.

It exits 0 if the command succeeded completely, 1 if not (rows rejected, a node not ready,
a request refused), and 2 on wrong usage. Errors go to standard error.`,
		Example:       "  countctl status\n  countctl incr 1 like=1\n  countctl get 1",
		Version:       program.VersionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if keyspace := cmd.Flags().Lookup("keyspace"); keyspace != nil && keyspace.Changed && keyspace.Value.String() == "" {
				return Usagef("--keyspace is empty")
			}
			return c.checkGlobals()
		},
		RunE: func(*cobra.Command, []string) error {
			return Usagef("a command is missing")
		},
	}
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("countctl {{.Version}}\n")
	c.globalFlags(root)
	root.AddCommand(c.versionCommand())
	for _, commands := range groups {
		root.AddCommand(commands(c)...)
	}
	checkArgs(root)
	root.SetHelpCommand(helpCommand())
	needShell(root)
	return root
}

// checkGlobals checks the global flags, and then sets understood. From then on, not every error is
// a usage error.
func (c *CLI) checkGlobals() error {
	if c.output != outputTable && c.output != outputJSON {
		return Usagef("--output is table or json, not %q", c.output)
	}
	server, err := c.Connect()
	if err != nil {
		return err
	}
	server.Close()
	c.understood = true
	return nil
}

// explain returns the text of an error, with a remedy if countctl knows one.
func (c *CLI) explain(err error) string {
	var refused *client.Error
	var unknown *unknownError
	switch {
	case errors.As(err, &unknown):
		return err.Error()
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, client.ErrNoAnswer):
		return err.Error() + "; is countd running there? Set --addr or " + AddrEnv
	case errors.As(err, &refused):
		if what := remedy(refused); what != "" {
			return err.Error() + "; " + what
		}
	}
	return err.Error()
}

// remedy returns a remedy for certain error codes, and "" for all others.
func remedy(refused *client.Error) string {
	switch refused.Code {
	case "unknown_keyspace":
		return "see countctl keyspace list"
	case "overloaded", "no_leader", "no_quorum", "draining":
		return "try again"
	case "memory_full", "disk_full":
		return "free some space on the server, then try again"
	case "outcome_unknown":
		return "run it again: it does not repeat what was already done"
	case "too_large":
		return "send less at once"
	case "unauthenticated":
		return "set " + tokenEnv + " or --token-file"
	case "keyspace_exists":
		return "choose another name, or the shape in countctl keyspace list"
	}
	return ""
}

// flagError returns a better error for an invalid flag. A negative id, such as -5, also arrives
// here, because it looks like a flag.
func flagError(_ *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if digits := unknown.GetSpecifiedShortnames(); digits != "" && strings.Trim(digits, "0123456789") == "" {
			return Usagef("the id \"-%s\" is %v", digits, client.ErrNotNumber)
		}
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) && wrong.GetFlag().Value.Type() == "stringToInt64" {
		return Usagef("--%s is COLUMN=N, such as like=0, not %q", wrong.GetFlag().Name, wrong.GetValue())
	}
	return err
}

// helpCommand returns the command "help". An unknown command name is a usage error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND…]",
		Short: "Print the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return Usagef("there is no command %q", strings.Join(args, " "))
			}
			return of.Help()
		},
	}
}

// needShell makes the command "completion" return an error if it gets no shell, or an unknown one.
// By default, the command would print its help.
func needShell(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		panic("countctl has no completion: " + err.Error())
	}
	completion.Args = nil
	completion.RunE = func(cmd *cobra.Command, _ []string) error {
		var shells []string
		for _, shell := range cmd.Commands() {
			shells = append(shells, shell.Name())
		}
		return Usagef("completion needs one of %s", strings.Join(shells, ", "))
	}
}

// argumentFields lists fields of requests whose values countctl copies from the command line. The
// names are those in the server's errors.
var argumentFields = []string{
	"consistency", "max_staleness", "Countd-Token", "Countd-Timeout", "Idempotency-Key",
	"name", "shards", "columns", "channel", "channels", "dots", "followees", "seq", "since", "up_to", "user", "users",
	"keyspace", "before", "older_than_seconds", "column", "member", "limit", "cursor",
	"positions", "key", "group", "grants", "limits",
}

// isUsage reports whether the server refused a value that comes from the command line.
func isUsage(err error) bool {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != "invalid_argument" {
		return false
	}
	field := strings.FieldsFunc(refused.Field, func(r rune) bool { return r == '[' || r == '.' })
	return len(field) > 0 && slices.Contains(argumentFields, field[0])
}

type versionOutput struct {
	Client string `json:"client"`
	Server string `json:"server"` // "" if the server did not answer
}

func (c *CLI) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of countctl and of the server, if it answers",
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := versionOutput{Client: program.VersionText()}
			return c.WithServer(func(server *client.Client) (err error) {
				// Print countctl's own version even if no server answers.
				if out.Server, err = admin.New(server).Version(cmd.Context()); err != nil {
					fmt.Fprintf(c.Err, "countctl: the server's version is not known: %s\n", c.explain(err))
				}
				return c.Print(out, func(t *Table) {
					t.Row("countctl", out.Client)
					if out.Server != "" {
						t.Row("countd", out.Server)
					}
				})
			})
		},
	}
}
