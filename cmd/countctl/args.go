package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// keyspaceFlag adds --keyspace, for a keyspace of counters, to a command whose RunE is set.
func (c *cli) keyspaceFlag(cmd *cobra.Command, keyspace *string) {
	cmd.Flags().StringVar(keyspace, "keyspace", "posts", "keyspace to work on")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.tellKind(cmd.Context(), *keyspace, run(cmd, args))
	}
}

// tellKind explains that a keyspace exists but is for another command.
func (c *cli) tellKind(ctx context.Context, name string, err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != "unknown_keyspace" {
		return err
	}
	other := error(nil)
	_ = c.withServer(func(server *client.Client) error { // without an answer the first error is all there is
		list, failed := server.Keyspaces(ctx)
		for _, k := range list {
			if k.Name == name {
				other = notCounters(k)
			}
		}
		return failed
	})
	return cmp.Or(other, err)
}

// notCounters returns nil for a keyspace of counters, otherwise an error that names the
// command to use.
func notCounters(k client.Keyspace) error {
	command, ok := map[string]string{"unread": "unread", "feed": "feed", "board": "notice and countctl dot"}[k.Kind]
	if !ok {
		return nil
	}
	return fmt.Errorf("%s is not a keyspace of counters; use countctl %s", k.Name, command)
}

// readFlags adds the flags of reads.
func readFlags(cmd *cobra.Command, o *client.ReadOptions) {
	cmd.Flags().StringVar(&o.Consistency, "consistency", "", "stale, bounded or linearizable (the server's default is bounded)")
	durationFlag(cmd.Flags(), &o.MaxStaleness, "max-staleness", 0, "maximum age of a bounded read (the server's default is 1s)")
	cmd.Flags().StringVar(&o.Token, "token", "", "token of a write that the read must see")
}

func checkReadOptions(cmd *cobra.Command, o client.ReadOptions) error {
	if !slices.Contains([]string{"", "stale", "bounded", "linearizable"}, o.Consistency) {
		return usagef("--consistency is stale, bounded or linearizable, not %q", o.Consistency)
	}
	if cmd.Flags().Changed("max-staleness") && o.MaxStaleness <= 0 {
		return usagef("--max-staleness is above 0 and up to 1h, not %v", o.MaxStaleness)
	}
	return nil
}

// commandGroup returns a command that only has sub-commands.
func commandGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	names := make([]string, len(commands))
	for i, sub := range commands {
		names[i], _, _ = strings.Cut(sub.Use, " ")
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("%s needs %s", use, strings.Join(names, ", "))
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}
