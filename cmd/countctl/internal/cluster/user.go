package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func userCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("user", "List, create, change and delete users", c.ListCommand("users", func(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
		users, err := admin.New(server).Users(ctx)
		return map[string]any{"users": users}, func(t *cli.Table) { accountRows(t, users) }, err
	}), userShowCommand(c), userCreateCommand(c), userGrantCommand(c), userDeleteCommand(c))
}

func userShowCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Print a user with its tokens",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			u, err := admin.New(server).User(ctx, args[0])
			return c.Answer(err, "read user "+args[0], u, func(t *cli.Table) {
				accountRows(t, []admin.User{u})
				if len(u.Tokens) > 0 {
					t.Row()
					tokenRows(t, u.Tokens)
				}
			})
		}),
	}
}

// grantFlags holds the flags that set a user's grants and limits.
type grantFlags struct {
	grants []string
	limits admin.UserLimits
}

func (g *grantFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&g.grants, "grant", nil, "ROLE:KEYSPACE,…: reader, writer or ingest on keyspaces, * for all; metrics or admin, for the whole cluster; may be repeated")
	cmd.Flags().Int64Var(&g.limits.Requests, "requests-per-second", 0, "limit of requests on each node; 0 for none")
	cmd.Flags().Int64Var(&g.limits.Ops, "ops-per-second", 0, "limit of ops on each node; 0 for none")
	cmd.Flags().Int64Var(&g.limits.Connections, "connections-per-second", 0, "limit of new connections on each node; 0 for none")
}

// parse parses the --grant flags.
func (g *grantFlags) parse() ([]admin.Grant, error) {
	var grants []admin.Grant
	for _, text := range g.grants {
		role, keyspaces, named := strings.Cut(text, ":")
		grant := admin.Grant{Role: role}
		if named {
			grant.Keyspaces = strings.Split(keyspaces, ",")
		}
		if role == "" || named && slices.Contains(grant.Keyspaces, "") {
			return nil, cli.Usagef("--grant is ROLE:KEYSPACE,… or metrics or admin, not %q", text)
		}
		grants = append(grants, grant)
	}
	return grants, nil
}

// someLimits returns the limits of the flags, or nil if no limit is set.
func (g *grantFlags) someLimits() *admin.UserLimits {
	if g.limits == (admin.UserLimits{}) {
		return nil
	}
	return &g.limits
}

func userCreateCommand(c *cli.CLI) *cobra.Command {
	var flags grantFlags
	cmd := &cobra.Command{
		Use:     "create NAME --grant ROLE:KEYSPACE,…",
		Short:   "Create a user, unless one of this name exists",
		Example: "  countctl user create web --grant writer:posts,users,unread,feed\n  countctl user create ann --grant admin",
		RunE: func(cmd *cobra.Command, args []string) error {
			grants, err := flags.parse()
			if err != nil {
				return err
			}
			if len(grants) == 0 {
				return cli.Usagef("user create needs --grant")
			}
			return c.WithServer(func(server *client.Client) error {
				u, err := admin.New(server).CreateUser(cmd.Context(), args[0], grants, flags.someLimits())
				var refused *client.Error
				if errors.As(err, &refused) && refused.Field == "was" {
					return fmt.Errorf("there is a user %s; countctl user grant changes it", args[0])
				}
				return printChanged(c, args[0], u, err)
			})
		},
	}
	flags.add(cmd)
	return cmd
}

func userGrantCommand(c *cli.CLI) *cobra.Command {
	var flags grantFlags
	var only bool
	cmd := &cobra.Command{
		Use:     "grant NAME --grant ROLE:KEYSPACE,…",
		Short:   "Add grants to a user, or set its limits",
		Example: "  countctl user grant web --grant reader:users\n  countctl user grant web --only --grant reader:posts",
		RunE: func(cmd *cobra.Command, args []string) error {
			added, err := flags.parse()
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				u, err := admin.New(server).ChangeUser(cmd.Context(), args[0], func(u *admin.User) {
					if only {
						u.Grants = nil
					}
					for _, grant := range added { // a grant that the user already has is not added again
						if !holds(u, grant) {
							u.Grants = append(u.Grants, grant)
						}
					}
					if cmd.Flags().Changed("requests-per-second") || cmd.Flags().Changed("ops-per-second") || cmd.Flags().Changed("connections-per-second") {
						u.Limits = flags.someLimits()
					}
				})
				return printChanged(c, args[0], u, err)
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&only, "only", false, "remove all other grants")
	return cmd
}

// holds reports whether a user has a grant. A grant on the whole cluster has no keyspaces on the
// command line, but the keyspace * in the user's record.
func holds(u *admin.User, grant admin.Grant) bool {
	return slices.ContainsFunc(u.Grants, func(has admin.Grant) bool {
		return has.Role == grant.Role && (slices.Equal(has.Keyspaces, grant.Keyspaces) || grant.Keyspaces == nil && slices.Equal(has.Keyspaces, []string{"*"}))
	})
}

// printChanged prints a created or changed user, or returns the error of that change.
func printChanged(c *cli.CLI, name string, u admin.User, err error) error {
	warnOfBehind(c, u.NodesBehind)
	return c.Answer(err, "change user "+name, u, func(t *cli.Table) { accountRows(t, []admin.User{u}) })
}

// warnOfBehind warns of the nodes in behind, which may not have applied a change yet.
func warnOfBehind(c *cli.CLI, behind []string) {
	if len(behind) > 0 {
		fmt.Fprintf(c.Err, "warning: not confirmed by %s: these nodes act on it once they hear of it, and refuse all tokens 30 s after they lost the cluster\n", strings.Join(behind, ", "))
	}
}

func userDeleteCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a user with all its tokens",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			u, err := admin.New(server).DeleteUser(ctx, args[0])
			warnOfBehind(c, u.NodesBehind)
			return c.Answer(err, "delete user "+args[0], u, func(t *cli.Table) { t.Row("deleted user", u.Name) })
		}),
	}
}

func tokenCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("token", "Create, list and revoke tokens of users", tokenCreateCommand(c), tokenListCommand(c), tokenRevokeCommand(c))
}

func tokenCreateCommand(c *cli.CLI) *cobra.Command {
	var expiresIn time.Duration
	cmd := &cobra.Command{
		Use:   "create USER",
		Short: "Create a token for a user and print it; it is never shown again",
		RunE: func(cmd *cobra.Command, args []string) error {
			if expiresIn < 0 {
				return cli.Usagef("--expires-in must not be below 0")
			}
			return c.WithServer(func(server *client.Client) error {
				made, err := admin.New(server).CreateToken(cmd.Context(), args[0], expiresIn)
				warnOfBehind(c, made.NodesBehind)
				return c.Answer(err, "create a token for user "+args[0], made, func(t *cli.Table) { t.Row(made.Token) })
			})
		},
	}
	cli.DurationFlag(cmd.Flags(), &expiresIn, "expires-in", 0, "how long the token is valid, at most 87600h; 0 for a token that does not expire")
	return cmd
}

func tokenListCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use: "list USER", Short: "Print the tokens of a user, without their text",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			u, err := admin.New(server).User(ctx, args[0])
			return c.Answer(err, "read user "+args[0], map[string]any{"tokens": u.Tokens}, func(t *cli.Table) { tokenRows(t, u.Tokens) })
		}),
	}
}

func tokenRevokeCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use: "revoke USER ID", Short: "Revoke a token of a user, on all nodes at once",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			behind, err := admin.New(server).RevokeToken(ctx, args[0], args[1])
			warnOfBehind(c, behind)
			return c.Answer(err, fmt.Sprintf("revoke token %s of user %s", args[1], args[0]), admin.UserToken{ID: args[1], NodesBehind: behind}, func(t *cli.Table) { t.Row("revoked token", args[1]) })
		}),
	}
}

func auditCommand(c *cli.CLI) *cobra.Command {
	limit := 20
	tail := &cobra.Command{
		Use: "tail", Short: "Print the last lines of the audit log of the node at --addr",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return cli.Usagef("--lines is 1 to 1000, not %d", limit)
			}
			return c.WithServer(func(server *client.Client) error {
				events, err := admin.New(server).Audit(cmd.Context(), limit)
				return c.Answer(err, "read the audit log", map[string]any{"events": events}, func(t *cli.Table) {
					t.Row("TIME", "WHO", "FROM", "WHAT", "TARGET", "OUTCOME", "SUPPRESSED")
					for _, e := range events {
						t.Row(e.Time.Format(time.RFC3339), cmp.Or(e.Who, "-"), e.From, e.What, cmp.Or(e.Target, "-"), e.Outcome, e.Suppressed)
					}
				})
			})
		},
	}
	tail.Flags().IntVarP(&limit, "lines", "n", limit, "number of lines, at most 1000")
	return cli.CommandGroup("audit", "Read the audit log of a node", tail)
}

func accountRows(t *cli.Table, users []admin.User) {
	t.Row("USER", "GRANTS", "LIMITS", "TOKENS")
	for _, u := range users {
		var grants []string
		for _, g := range u.Grants {
			grants = append(grants, g.Role+":"+strings.Join(g.Keyspaces, ","))
		}
		limits := "-"
		if l := u.Limits; l != nil {
			limits = fmt.Sprintf("%d requests, %d ops, %d connections", l.Requests, l.Ops, l.Connections)
		}
		t.Row(u.Name, strings.Join(grants, " "), limits, len(u.Tokens))
	}
}

func tokenRows(t *cli.Table, tokens []admin.UserToken) {
	t.Row("TOKEN", "CREATED", "EXPIRES")
	for _, token := range tokens {
		t.Row(token.ID, token.Created, cmp.Or(token.Expires, "never"))
	}
}
