package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/countd/countd/client"
)

// Exit codes.
const (
	exitOK    = 0 // all that was asked holds
	exitFail  = 1 // it does not
	exitUsage = 2 // it was not understood
)

const (
	addrDefault    = "http://127.0.0.1:7400"
	addrEnv        = "COUNTCTL_ADDR"
	timeoutDefault = 5 * time.Second
)

// terminal is where a command reads and writes.
type terminal struct {
	in  io.Reader
	out io.Writer
	err io.Writer
	env func(string) string
}

// cli holds the global flags and the terminal, for every command.
type cli struct {
	terminal
	addrs   []string
	output  string
	yes     bool
	noWait  bool
	timeout time.Duration
	tls     tlsFlags
	// tokenFile overrides the variable with the token.
	tokenFile string
	// interrupted is closed by the first signal.
	interrupted <-chan struct{}
	// understood is set once a command's flags and arguments were parsed: an error before
	// that is one of usage.
	understood bool
}

// usageError is a mistake in the command line that only the command can see.
type usageError struct{ problem string }

func (e *usageError) Error() string { return e.problem }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, t terminal) int {
	c := &cli{terminal: t, interrupted: ctx.Done()}
	root := c.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case !c.understood || errors.As(err, &usage) || isUsage(err):
		fmt.Fprintf(t.err, "countctl: %v; see %s --help\n", err, cmd.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(t.err, "countctl: %s\n", c.explain(err))
		return exitFail
	}
}

func (c *cli) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "countctl",
		Short: "Work on a countd server",
		Long: `countctl works on a countd server through its HTTP API.

It exits 0 if the command succeeded completely, 1 if not (rows rejected, a node not ready,
a request refused), and 2 on wrong usage. Errors go to standard error.`,
		Version:       clientVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if keyspace := cmd.Flags().Lookup("keyspace"); keyspace != nil && keyspace.Changed && keyspace.Value.String() == "" {
				return usagef("--keyspace is empty")
			}
			return c.checkGlobals()
		},
		RunE: func(*cobra.Command, []string) error {
			return usagef("a command is missing")
		},
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("countctl {{.Version}}\n")
	c.globalFlags(root)
	root.AddCommand(
		c.statusCommand(),
		c.getCommand(), c.mgetCommand(), c.topCommand(),
		c.incrCommand(), c.opsCommand(), c.setCommand(), c.deleteCommand(),
		c.importCommand(), c.replayCommand(), c.exportCommand(),
		c.membersCommand(), c.unreadCommand(), c.noticeCommand(), c.dotCommand(), c.feedCommand(), c.outboxCommand(), c.timelineCommand(), c.pollCommand(),
		c.keyspaceCommand(), c.sourceCommand(), c.reconcileCommand(), c.benchCommand(), c.versionCommand(),
		c.nodeCommand(), c.groupCommand(), c.coldCommand(), c.rebalanceCommand(), c.verifyCommand(), c.upgradeCommand(),
		c.userCommand(), c.tokenCommand(), c.auditCommand(),
		c.certCommand(), c.gossipKeyCommand(), c.rollingRestartCommand(), c.backupCommand(), c.restoreCommand(), c.debugCommand(),
	)
	root.SetHelpCommand(helpCommand())
	needShell(root)
	return root
}

func (c *cli) globalFlags(root *cobra.Command) {
	addrs := strings.FieldsFunc(cmp.Or(c.env(addrEnv), addrDefault), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	flags := root.PersistentFlags()
	flags.StringSliceVar(&c.addrs, "addr", addrs, "address of a server, or of several of one cluster, which are tried in turn; "+addrEnv+" sets others")
	flags.StringVarP(&c.output, "output", "o", outputTable, "table or json")
	flags.BoolVar(&c.yes, "yes", false, "do not ask for confirmation, and allow what is otherwise refused as unsafe")
	flags.BoolVar(&c.noWait, "no-wait", false, "do not wait for operations that the server completes by itself; no effect on import, replay, export and bench")
	durationFlag(flags, &c.timeout, "timeout", timeoutDefault, "deadline of one request, at most 60s")
	c.tlsFlags(flags)
	c.tokenFlags(flags)
}

// checkGlobals ends the part of a run whose errors are of usage.
func (c *cli) checkGlobals() error {
	if c.output != outputTable && c.output != outputJSON {
		return usagef("--output is table or json, not %q", c.output)
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	server.Close()
	c.understood = true
	return nil
}

// connect returns a client with the global flags. It sends each call once, so that a person
// notices at once that no server answers. It does not connect yet.
func (c *cli) connect() (*client.Client, error) {
	return c.connectFor(client.Retry{For: client.RetryNever})
}

func (c *cli) connectFor(retry client.Retry) (*client.Client, error) {
	if c.timeout <= 0 {
		return nil, usagef("--timeout must be above 0, not %v", c.timeout)
	}
	return c.dial(c.addrs, retry)
}

// withServer has act work on the server that the global flags name.
func (c *cli) withServer(act func(*client.Client) error) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	defer server.Close()
	return act(server)
}

// listCommand returns a command that lists the objects of a kind. list returns them for JSON
// and as a table.
func (c *cli) listCommand(kind string, list func(context.Context, *client.Client) (any, func(*table), error)) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Print the " + kind,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withServer(func(server *client.Client) error {
				all, rows, err := list(cmd.Context(), server)
				if err != nil {
					return fmt.Errorf("cannot list the %s: %w", kind, err)
				}
				return c.print(all, rows)
			})
		},
	}
}

// explain adds a remedy to an error.
func (c *cli) explain(err error) string {
	var refused *client.Error
	var unknown *unknownError
	switch {
	case errors.As(err, &unknown):
		return err.Error()
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, client.ErrNoAnswer):
		return err.Error() + "; is countd running there? Set --addr or " + addrEnv
	case errors.As(err, &refused):
		if what := remedy(refused); what != "" {
			return err.Error() + "; " + what
		}
	}
	return err.Error()
}

// remedy returns what to do about a refusal, if its message does not say so.
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

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
