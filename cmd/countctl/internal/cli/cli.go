// Package cli owns what all commands of countctl share: global flags and their environment
// variables, the connection to the cluster, questions, progress, output and exit codes.
//
// It defines only the commands version, help and completion. The other packages pass their commands
// to Main. Package cli never retries a call itself: package client does that, for as long as the
// command wants.
//
// Invariant: a command that fails prints one error, whose kind alone decides the exit code.
package cli

import (
	"bufio"
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
	"github.com/countd/countd/client/admin"
)

// Exit codes.
const (
	ExitOK    = 0 // the command succeeded, and its checks passed
	ExitFail  = 1 // the command failed, or one of its checks did
	ExitUsage = 2 // the arguments are invalid
)

const (
	addrDefault    = "http://127.0.0.1:7400"
	AddrEnv        = "COUNTCTL_ADDR"
	timeoutDefault = 5 * time.Second
)

// Terminal holds the streams and the environment of a command.
type Terminal struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
	Env func(string) string
}

// CLI holds the global flags and the terminal. All commands share it.
type CLI struct {
	Terminal
	addrs   []string
	output  string
	Yes     bool
	NoWait  bool
	Timeout time.Duration
	TLS     tlsFlags
	// tokenFile is the value of --token-file. It overrides the environment variable COUNTCTL_TOKEN.
	tokenFile string
	meter     *Meter // nil unless the command has started a Meter
	// Interrupted is closed by the first signal.
	Interrupted <-chan struct{}
	// understood is set once a command's flags and arguments are parsed. Every earlier error is a
	// usage error.
	understood bool
}

// UsageError is a mistake in the command line that the command itself detects.
type UsageError struct{ problem string }

func (e *UsageError) Error() string { return e.problem }

// Usagef returns a UsageError, for which countctl exits with ExitUsage.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

func (c *CLI) globalFlags(root *cobra.Command) {
	addrs := strings.FieldsFunc(cmp.Or(c.Env(AddrEnv), addrDefault), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	flags := root.PersistentFlags()
	flags.StringSliceVar(&c.addrs, "addr", addrs, "address of a server, http://host:port or host (port 7400), or of several servers of one cluster, which are tried in turn; "+AddrEnv+" sets others")
	flags.StringVarP(&c.output, "output", "o", outputTable, "table or json")
	flags.BoolVar(&c.Yes, "yes", false, "do not ask for confirmation, and allow what is refused as unsafe otherwise")
	flags.BoolVar(&c.NoWait, "no-wait", false, "do not wait for operations that the server completes by itself; no effect on import, replay, export and bench")
	DurationFlag(flags, &c.Timeout, "timeout", timeoutDefault, "deadline of one request, at most 60s")
	c.tlsFlags(flags)
	c.tokenFlags(flags)
}

// Connect returns a client with the settings of the global flags; it opens no connection yet. If a
// call fails with no_leader, as right after a start or during an election, the client repeats it
// for up to --timeout. It does not repeat a call if no server is reachable.
func (c *CLI) Connect() (*client.Client, error) {
	return c.ConnectFor(client.Retry{For: c.Timeout, OnlyNoLeader: true})
}

// ConnectFor is like Connect, but the client repeats calls as retry defines.
func (c *CLI) ConnectFor(retry client.Retry) (*client.Client, error) {
	if c.Timeout <= 0 {
		return nil, Usagef("--timeout must be above 0, not %v", c.Timeout)
	}
	return c.Dial(c.addrs, retry)
}

// WithServer calls act with a client from Connect, and then closes the client.
func (c *CLI) WithServer(act func(*client.Client) error) error {
	server, err := c.Connect()
	if err != nil {
		return err
	}
	defer server.Close()
	return act(server)
}

// OnServer returns a RunE function that calls act with a client from Connect.
func (c *CLI) OnServer(act func(ctx context.Context, server *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return c.WithServer(func(server *client.Client) error { return act(cmd.Context(), server, args) })
	}
}

// OnCluster returns a RunE function that calls act with the client and the nodes from Operate.
func (c *CLI) OnCluster(act func(ctx context.Context, server *client.Client, nodes []admin.ClusterNode, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		server, nodes, err := c.Operate(cmd.Context())
		if err != nil {
			return err
		}
		defer server.Close()
		return act(cmd.Context(), server, nodes, args)
	}
}

// ListCommand returns a command that lists the objects of a kind. list returns a value for the JSON
// output, and a function that fills the table.
func (c *CLI) ListCommand(kind string, list func(context.Context, *client.Client) (any, func(*Table), error)) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Print the " + kind,
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, _ []string) error {
			all, rows, err := list(ctx, server)
			return c.Answer(err, "list the "+kind, all, rows)
		}),
	}
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ConfirmRisk is like Confirm, but without a terminal it returns an error unless --yes is set. It
// is for commands that must not run by accident.
func (c *CLI) ConfirmRisk(question string) error {
	if err := c.MayAsk(question); err != nil {
		return err
	}
	return c.Confirm(question)
}

// ConfirmTyped asks the operator to type a text before data is lost for good. Without a terminal it
// requires --yes.
func (c *CLI) ConfirmTyped(what, text string) error {
	if err := c.MayAsk(what); err != nil || c.Yes {
		return err
	}
	answer, err := c.Ask(fmt.Sprintf("%s Type %s to continue: ", what, text))
	if err != nil || strings.TrimSpace(answer) != text {
		return fmt.Errorf("nothing was done; type %s, or give --yes", text)
	}
	return nil
}

// MayAsk returns an error if --yes is not set and there is no terminal on which to ask the
// question.
func (c *CLI) MayAsk(question string) error {
	if !c.Yes && (!IsTerminal(c.In) || !IsTerminal(c.Err)) {
		return Usagef("%s Give --yes", question)
	}
	return nil
}

// Ask prints a question and returns the answer, or an error after an interrupt. After an interrupt,
// its goroutine keeps waiting for the answer until the process ends.
func (c *CLI) Ask(question string) (string, error) {
	fmt.Fprint(c.Err, question)
	type reply struct {
		line string
		err  error
	}
	replies := make(chan reply, 1)
	go func() {
		line, err := bufio.NewReader(c.In).ReadString('\n')
		replies <- reply{line, err}
	}()
	select {
	case r := <-replies:
		return r.line, r.err
	case <-c.Interrupted:
		fmt.Fprintln(c.Err)
		return "", context.Canceled
	}
}

// Confirm asks the question on a terminal, and returns an error unless the answer is y. Without a
// terminal, or with --yes, it returns nil.
func (c *CLI) Confirm(question string) error {
	if c.Yes || !IsTerminal(c.In) || !IsTerminal(c.Err) {
		return nil
	}
	answer, err := c.Ask(question + " [y/N] ")
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") {
		return fmt.Errorf("nothing was done; answer y, or give --yes")
	}
	return nil
}
