package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// HasColumn returns an error if a keyspace lacks a column.
func HasColumn(keyspace client.Keyspace, column string) error {
	if slices.Contains(keyspace.Columns, column) {
		return nil
	}
	return Usagef("keyspace %s has no column %q (it has %s)", keyspace.Name, column, strings.Join(keyspace.Columns, ", "))
}

// FindColumn is like FindCounters, but also returns an error if the keyspace lacks the column.
func FindColumn(ctx context.Context, server *client.Client, name, column string) (client.Keyspace, error) {
	keyspace, err := FindCounters(ctx, server, name)
	if err == nil {
		err = HasColumn(keyspace, column)
	}
	return keyspace, err
}

// FindCounters is like FindKeyspace, but also returns an error for a keyspace of another kind than
// counters.
func FindCounters(ctx context.Context, server *client.Client, name string) (client.Keyspace, error) {
	k, err := FindKeyspace(ctx, server, name)
	if err != nil {
		return k, err
	}
	return k, notCounters(k)
}

// FindKeyspace returns the keyspace with a name, of any kind, or an error if there is none.
func FindKeyspace(ctx context.Context, server *client.Client, name string) (client.Keyspace, error) {
	list, err := server.Keyspaces(ctx)
	if err != nil {
		return client.Keyspace{}, fmt.Errorf("cannot read the keyspaces: %w", err)
	}
	return find(list, name)
}

// TakesIDs returns a usage error if a keyspace cannot have one of some ids. what says what they are. It asks the server
// only if one of them is no number.
func TakesIDs(ctx context.Context, server *client.Client, keyspace, what string, ids ...client.ID) error {
	at := slices.IndexFunc(ids, func(id client.ID) bool {
		_, number := id.Number()
		return !number
	})
	if at < 0 {
		return nil
	}
	k, err := FindKeyspace(ctx, server, keyspace)
	if err == nil && k.IDs == "" {
		err = Usagef("the %s %q is %v", what, ids[at].String(), client.ErrNotNumber)
	}
	return err
}

// FindKeyspaceNow is FindKeyspace with the list of KeyspacesNow.
func FindKeyspaceNow(ctx context.Context, server *client.Client, name string) (client.Keyspace, error) {
	list, err := KeyspacesNow(ctx, server)
	if err != nil {
		return client.Keyspace{}, err
	}
	return find(list, name)
}

// KeyspacesNow lists the keyspaces. The node's catalog may be old, so it first waits until it is as new as the leader's.
func KeyspacesNow(ctx context.Context, server *client.Client) ([]client.Keyspace, error) {
	all, err := client.AskMember[[]client.Keyspace](ctx, server, client.Call{
		Method: http.MethodGet, Path: "/v1/keyspaces?consistency=linearizable",
	}, "keyspaces")
	if err != nil {
		return nil, fmt.Errorf("cannot list the keyspaces: %w", err)
	}
	return all, nil
}

func find(list []client.Keyspace, name string) (client.Keyspace, error) {
	var names []string
	for _, k := range list {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return client.Keyspace{}, fmt.Errorf("no keyspace %q (there are %s); countctl keyspace create makes one", name, strings.Join(names, ", "))
}

// KeyspaceFlag adds --keyspace to a command on a keyspace of counters. The caller must set the
// command's RunE first, because KeyspaceFlag wraps it.
func (c *CLI) KeyspaceFlag(cmd *cobra.Command, keyspace *string) {
	cmd.Flags().StringVar(keyspace, "keyspace", "posts", "keyspace to work on")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.explainKind(cmd.Context(), *keyspace, run(cmd, args))
	}
}

// explainKind replaces the error unknown_keyspace by a better one if the keyspace exists but is of
// another kind.
func (c *CLI) explainKind(ctx context.Context, name string, err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != "unknown_keyspace" {
		return err
	}
	other := error(nil)
	_ = c.WithServer(func(server *client.Client) error { // if this call fails too, explainKind returns err
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

// notCounters returns nil for a keyspace of counters. For other kinds, it returns an error that
// names the command to use.
func notCounters(k client.Keyspace) error {
	command, ok := map[string]string{"unread": "unread", "feed": "feed", "board": "notice and countctl dot"}[k.Kind]
	if !ok {
		return nil
	}
	return fmt.Errorf("%s is not a keyspace of counters; use countctl %s", k.Name, command)
}

// ColumnFlags holds the values of --keyspace and --column, which name the member sets that a
// command works on.
type ColumnFlags struct{ Keyspace, Column string }

// Register adds the flags to a command.
func (f *ColumnFlags) Register(c *CLI, cmd *cobra.Command) {
	c.KeyspaceFlag(cmd, &f.Keyspace)
	ColumnFlag(cmd, &f.Column)
}

// ColumnFlag adds --column to a command.
func ColumnFlag(cmd *cobra.Command, column *string) {
	cmd.Flags().StringVar(column, "column", "like", "column that has the members")
}

// Members returns the part of the client that works on these sets.
func (f *ColumnFlags) Members(server *client.Client) client.Members {
	return server.Members(f.Keyspace, f.Column)
}

// GrowingText describes the progress of a keyspace that grows.
func GrowingText(k client.Keyspace) string {
	states := map[string]int{}
	for _, s := range k.Growing.Shards {
		states[s.State]++
	}
	text := fmt.Sprintf("%s grows from %s to %d", k.Name, Counted(k.Shards, "shard"), k.Growing.To)
	if k.Growing.Since != "" {
		text += " since " + k.Growing.Since
	}
	text += ":"
	for i, state := range []string{"waiting", "committed", "split", "begun"} {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %d %s", states[state], state)
	}
	return text
}
