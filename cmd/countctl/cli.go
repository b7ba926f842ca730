package main

import (
	"cmp"
	"context"
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

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
