package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
)

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

// flagError explains an invalid flag. A negative id looks like a flag.
func flagError(_ *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if digits := unknown.GetSpecifiedShortnames(); digits != "" && strings.Trim(digits, "0123456789") == "" {
			return usagef("the id \"-%s\" is %v", digits, client.ErrBadID)
		}
	}
	return err
}

// helpCommand prints a command's help. An unknown name is an error of usage.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command %q", strings.Join(args, " "))
			}
			return of.Help()
		},
	}
}

// needShell makes completion refuse an unknown shell instead of printing its help.
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
		return usagef("completion needs one of %s", strings.Join(shells, ", "))
	}
}

// argumentFields are the server's names for the parts of a request that come unchanged from
// the command line.
var argumentFields = []string{
	"consistency", "max_staleness", "Countd-Token", "Countd-Timeout", "Idempotency-Key",
	"name", "shards", "columns", "channel", "channels", "dots", "followees", "seq", "since", "up_to", "user", "users",
	"keyspace", "before", "older_than_seconds", "keep_seconds", "column", "member", "limit", "cursor",
}

// isUsage reports whether a server refused a part of the command line.
func isUsage(err error) bool {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != "invalid_argument" {
		return false
	}
	field, _, _ := strings.Cut(refused.Field, "[")
	return slices.Contains(argumentFields, field)
}
