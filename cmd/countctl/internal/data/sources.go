package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// sourceFileBytesMax bounds the bytes that are read from a file. The server has a lower limit.
const sourceFileBytesMax = 1 << 20

func sourceCommand(c *cli.CLI) *cobra.Command {
	list := c.ListCommand("sources", func(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
		all, err := admin.New(server).Sources(ctx)
		return map[string]any{"sources": all}, func(t *cli.Table) { sourceRows(t, all) }, err
	})
	return cli.CommandGroup("source", "Create, list, show, pause, resume, seek and delete sources: queues that the cluster counts",
		sourceCreateCommand(c), list, sourceShowCommand(c),
		sourceVerb(c, "pause", "Stop reading a source until it is resumed", admin.Client.PauseSource),
		sourceVerb(c, "resume", "End the pause of a source", admin.Client.ResumeSource),
		sourceSeekCommand(c), sourceDeleteCommand(c))
}

func sourceCreateCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "create FILE.yaml",
		Short: "Create a source, or change the configuration of the one of that name",
		Long: `Create a source, or change the configuration of the one of that name.

The file, or standard input for -, has the fields of docs/SOURCES.md in YAML or JSON. What
messages mean, and which queue they come from, can change only while the source is paused.`,
		Example: "  countctl source create likes.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readSource(c, args[0])
			if err != nil {
				return err
			}
			var named struct{ Name string }
			if err := yaml.Unmarshal(text, &named); err != nil {
				return fmt.Errorf("cannot read %s: %w", args[0], err)
			}
			if named.Name == "" {
				return fmt.Errorf("cannot read %s: name: missing", args[0])
			}
			return c.WithServer(func(server *client.Client) error {
				src, err := admin.New(server).PutSource(cmd.Context(), named.Name, text)
				return c.Answer(err, "create source "+named.Name, src, func(t *cli.Table) { sourceRows(t, []admin.Source{src}) })
			})
		},
	}
}

func readSource(c *cli.CLI, name string) ([]byte, error) {
	from := c.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read the configuration: %w", err)
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, sourceFileBytesMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	case len(text) > sourceFileBytesMax:
		return nil, fmt.Errorf("cannot read %s: over %d bytes", name, sourceFileBytesMax)
	}
	return text, nil
}

// sourceVerb returns a command that calls change for the source named by its argument.
func sourceVerb(c *cli.CLI, verb, short string, change func(admin.Client, context.Context, string) (admin.Source, error)) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME",
		Short:   short,
		Example: "  countctl source " + verb + " likes",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			src, err := change(admin.New(server), ctx, args[0])
			return c.Answer(err, fmt.Sprintf("%s source %s", verb, args[0]), src, func(t *cli.Table) { sourceRows(t, []admin.Source{src}) })
		}),
	}
}

func sourceSeekCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "seek NAME PARTITION=POSITION…",
		Short: "Set where partitions of a paused source continue",
		Long: `Set where partitions of a paused source continue.

The position is that of the next message to read. Messages between the old and the new
position count again, or never: nothing is taken back.`,
		Example: "  countctl source seek likes 0=700",
		RunE: func(cmd *cobra.Command, args []string) error {
			to := map[uint32]admin.SourcePosition{}
			for _, arg := range args[1:] {
				partition, position, ok := strings.Cut(arg, "=")
				number, err := strconv.ParseUint(partition, 10, 32)
				if !ok || err != nil || position == "" {
					return cli.Usagef("%q is not PARTITION=POSITION, such as 0=700", arg)
				}
				to[uint32(number)] = admin.SourcePosition(position)
			}
			if err := c.Confirm("Messages between the old and the new position count again, or never. Continue?"); err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				src, err := admin.New(server).SeekSource(cmd.Context(), args[0], to)
				return c.Answer(err, "seek source "+args[0], src, func(t *cli.Table) { sourceDetailRows(t, src) })
			})
		},
	}
}

func sourceDeleteCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a source and forget its positions; what was counted stays",
		Example: "  countctl source delete likes",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.Confirm("The positions are forgotten: a new source of this name begins anew, and may count messages again. Delete?"); err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				if err := admin.New(server).DeleteSource(cmd.Context(), args[0]); err != nil {
					return fmt.Errorf("cannot delete source %s: %w", args[0], err)
				}
				return c.Print(map[string]string{"deleted": args[0]}, func(t *cli.Table) {
					t.Row("DELETED")
					t.Row(args[0])
				})
			})
		},
	}
}

func sourceShowCommand(c *cli.CLI) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Print a source with its partitions",
		Long: `Print a source with its partitions.

With --wait the command shows the progress until everything that is in the queue when it
begins is counted. It exits 1 if the source is paused or stalled.`,
		Example: "  countctl source show likes --wait",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			src, err := admin.New(server).Source(ctx, args[0])
			if err == nil && wait && !c.NoWait {
				src, err = awaitSource(ctx, c, server, args[0])
			}
			return c.Answer(err, "show source "+args[0], src, func(t *cli.Table) { sourceDetailRows(t, src) })
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until what is in the queue is counted, and show the progress")
	return cmd
}

// awaitSource waits until a source has counted all messages that were in its queue when awaitSource
// was called.
func awaitSource(ctx context.Context, c *cli.CLI, server *client.Client, name string) (admin.Source, error) {
	began := time.Now()
	var first, lag atomic.Int64
	var m *cli.Meter
	defer func() {
		if m != nil {
			m.Stop()
		}
	}()
	var src admin.Source
	err := cli.Poll(ctx, cli.PollEvery, func() (done bool, err error) {
		asked := time.Now()
		src, err = admin.New(server).Source(ctx, name)
		switch {
		case err != nil && client.Retryable(err):
			return false, nil
		case err != nil:
			return false, err
		case src.State != "running":
			return false, errors.New(strings.TrimSuffix("it is "+src.State+": "+src.Reason, ": "))
		}
		if src.Lag != nil {
			lag.Store(int64(*src.Lag))
			if m == nil {
				first.Store(int64(*src.Lag))
				m = c.StartMeter(func() cli.Sample {
					done := max(0, first.Load()-lag.Load())
					return cli.Sample{Rows: done, Done: done, Total: first.Load(), Unit: "message"}
				})
			}
		}
		return caughtUp(src, asked.Sub(began)), nil
	})
	return src, err
}

// caughtUp reports whether each partition has counted up to its end, and the server read that end
// less than maxAge ago.
func caughtUp(src admin.Source, maxAge time.Duration) bool {
	for _, p := range src.Partitions {
		if p.EndAgeMS == nil || *p.EndAgeMS >= maxAge.Milliseconds() || p.Position != p.End {
			return false
		}
	}
	return len(src.Partitions) > 0
}

func sourceRows(t *cli.Table, all []admin.Source) {
	t.Row("NAME", "TYPE", "STATE", "PARTITIONS", "LAG", "SECONDS", "RATE", "REJECTED", "REASON")
	for _, src := range all {
		rate := 0.0
		for _, p := range src.Partitions {
			rate += p.Rate
		}
		t.Row(src.Name, src.Type, src.State, len(src.Partitions), orUnknown(src.Lag), lagSeconds(src.Partitions), fmt.Sprintf("%.0f/s", rate), src.Rejected, cmp.Or(src.Reason, "-"))
	}
}

func sourceDetailRows(t *cli.Table, src admin.Source) {
	sourceRows(t, []admin.Source{src})
	t.Gap()
	t.Row("DEAD LETTERS", "REJECTED", "LAST", "REASON")
	last, reason := "-", "-"
	if r := src.LastRejected; r != nil {
		last, reason = fmt.Sprintf("%d=%s", r.Partition, r.Position), r.Reason
	}
	t.Row(cmp.Or(src.DeadLetters, "-"), src.Rejected, last, reason)
	t.Gap()
	t.Row("PARTITION", "STATE", "NODE", "POSITION", "END", "LAG", "SECONDS", "RATE", "APPLIED", "REJECTED", "REASON")
	for _, p := range src.Partitions {
		t.Row(p.Partition, p.State, cmp.Or(p.Node, "-"), cmp.Or(string(p.Position), "-"), cmp.Or(string(p.End), "-"), orUnknown(p.Lag), lagSeconds([]admin.SourcePartition{p}),
			fmt.Sprintf("%.0f/s", p.Rate), p.Applied, p.Rejected, cmp.Or(p.Reason, "-"))
	}
}

// lagSeconds returns the longest lag of the partitions, or - if the lag of any partition is
// unknown.
func lagSeconds(all []admin.SourcePartition) string {
	seconds := 0.0
	for _, p := range all {
		if p.LagSeconds == nil {
			return "-"
		}
		seconds = max(seconds, *p.LagSeconds)
	}
	return fmt.Sprintf("%.1f", seconds)
}

func orUnknown(n *uint64) string {
	if n == nil {
		return "-"
	}
	return cli.Grouped(*n)
}
