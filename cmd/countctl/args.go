package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/days"
)

// exactly accepts n arguments; names describes them.
func exactly(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %s, not %d arguments", cmd.Name(), names, len(args))
		}
		return nil
	}
}

// atLeast accepts n arguments or more.
func atLeast(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usagef("%s takes %s, not %d arguments", cmd.Name(), names, len(args))
		}
		return nil
	}
}

// atMost accepts n arguments or fewer.
func atMost(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("%s takes %s, not %d arguments", cmd.Name(), names, len(args))
		}
		return nil
	}
}

// durationFlag defines a flag for a duration, which may be in days.
func durationFlag(flags *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	flags.Var(days.Flag{D: d}, name, usage)
	if value == 0 {
		flags.Lookup(name).DefValue = "" // help shows no default
	}
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
