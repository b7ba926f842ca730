package main

import (
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
)

// sourcesOutput is the JSON output of source list.
type sourcesOutput struct {
	Sources []client.Source `json:"sources"`
}

// sourceFileBytesMax is above what the server takes.
const sourceFileBytesMax = 1 << 20

func (c *cli) sourceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "source",
		Short: "Create, list, show, pause, resume, seek and delete sources: queues that the cluster counts",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("source needs create, list, show, pause, resume, seek or delete")
		},
	}
	list := c.listCommand("sources", func(ctx context.Context, server *client.Client) (any, func(*table), error) {
		all, err := server.Sources(ctx)
		return sourcesOutput{all}, func(t *table) { t.sources(all) }, err
	})
	cmd.AddCommand(c.sourceCreateCommand(), list, c.sourceShowCommand(),
		c.sourceVerb("pause", "Stop reading a source until it is resumed", (*client.Client).PauseSource),
		c.sourceVerb("resume", "End the pause of a source", (*client.Client).ResumeSource),
		c.sourceSeekCommand(), c.sourceDeleteCommand())
	return cmd
}

func (c *cli) sourceCreateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "create FILE.yaml",
		Short: "Create a source, or change the configuration of the one of that name",
		Long: `Create a source, or change the configuration of the one of that name.

The file, or standard input for -, has the fields of docs/SOURCES.md in YAML or JSON. What
messages mean, and which queue they come from, can change only while the source is paused.`,
		Example: "  countctl source create likes.yaml",
		Args:    exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := c.readSource(args[0])
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
			return c.withServer(func(server *client.Client) error {
				of, err := server.PutSource(cmd.Context(), named.Name, text)
				if err != nil {
					return fmt.Errorf("cannot create source %s: %w", named.Name, err)
				}
				return c.print(of, func(t *table) { t.sources([]client.Source{of}) })
			})
		},
	}
}

func (c *cli) readSource(name string) ([]byte, error) {
	from := c.in
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

// sourceVerb returns a command that changes the source it names.
func (c *cli) sourceVerb(verb, short string, change func(*client.Client, context.Context, string) (client.Source, error)) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME",
		Short:   short,
		Example: "  countctl source " + verb + " likes",
		Args:    exactly(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withServer(func(server *client.Client) error {
				of, err := change(server, cmd.Context(), args[0])
				if err != nil {
					return fmt.Errorf("cannot %s source %s: %w", verb, args[0], err)
				}
				return c.print(of, func(t *table) { t.sources([]client.Source{of}) })
			})
		},
	}
}

func (c *cli) sourceSeekCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "seek NAME PARTITION=POSITION…",
		Short: "Set where partitions of a paused source continue",
		Long: `Set where partitions of a paused source continue.

The position is that of the next message to read. Messages between the old and the new
position count again, or never: nothing is taken back.`,
		Example: "  countctl source seek likes 0=700",
		Args:    atLeast(2, "NAME and one PARTITION=POSITION or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			to := map[uint32]client.SourcePosition{}
			for _, arg := range args[1:] {
				partition, position, ok := strings.Cut(arg, "=")
				number, err := strconv.ParseUint(partition, 10, 32)
				if !ok || err != nil || position == "" {
					return usagef("%q is not PARTITION=POSITION, such as 0=700", arg)
				}
				to[uint32(number)] = client.SourcePosition(position)
			}
			if err := c.confirm("Messages between the old and the new position count again, or never. Continue?"); err != nil {
				return err
			}
			return c.withServer(func(server *client.Client) error {
				of, err := server.SeekSource(cmd.Context(), args[0], to)
				if err != nil {
					return fmt.Errorf("cannot seek source %s: %w", args[0], err)
				}
				return c.print(of, func(t *table) { t.source(of) })
			})
		},
	}
}

func (c *cli) sourceDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a source and forget its positions; what was counted stays",
		Example: "  countctl source delete likes",
		Args:    exactly(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.confirm("The positions are forgotten: a new source of this name begins anew, and may count messages again. Delete?"); err != nil {
				return err
			}
			return c.withServer(func(server *client.Client) error {
				if err := server.DeleteSource(cmd.Context(), args[0]); err != nil {
					return fmt.Errorf("cannot delete source %s: %w", args[0], err)
				}
				return c.print(map[string]string{"deleted": args[0]}, func(t *table) {
					t.row("DELETED")
					t.row(args[0])
				})
			})
		},
	}
}

func (c *cli) sourceShowCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Print a source with its partitions",
		Long: `Print a source with its partitions.

With --wait the command shows the progress until everything that is in the queue when it
begins is counted. It exits 1 if the source is paused or stalled.`,
		Example: "  countctl source show likes --wait",
		Args:    exactly(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withServer(func(server *client.Client) error {
				of, err := server.Source(cmd.Context(), args[0])
				if err == nil && wait && !c.noWait {
					of, err = c.awaitSource(cmd.Context(), server, args[0])
				}
				if err != nil {
					return fmt.Errorf("cannot show source %s: %w", args[0], err)
				}
				return c.print(of, func(t *table) { t.source(of) })
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until what is in the queue is counted, and show the progress")
	return cmd
}

// awaitSource waits until a source has counted what was in its queue when the wait began.
func (c *cli) awaitSource(ctx context.Context, server *client.Client, name string) (client.Source, error) {
	began := time.Now()
	var first, lag atomic.Int64
	var m *meter
	defer func() {
		if m != nil {
			m.stop()
		}
	}()
	for {
		asked := time.Now()
		of, err := server.Source(ctx, name)
		switch {
		case err != nil && !client.Retryable(err):
			return of, err
		case err == nil && of.State != "running":
			return of, errors.New(strings.TrimSuffix("it is "+of.State+": "+of.Reason, ": "))
		case err == nil && caughtUp(of, asked.Sub(began)):
			return of, nil
		case err == nil && of.Lag != nil:
			lag.Store(int64(*of.Lag))
			if m == nil {
				first.Store(int64(*of.Lag))
				m = c.startMeter(func() sample {
					done := max(0, first.Load()-lag.Load())
					return sample{rows: done, done: done, total: first.Load(), unit: "messages"}
				})
			}
		}
		select {
		case <-ctx.Done():
			return of, ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// caughtUp reports whether all partitions are at an end that was read within the time.
func caughtUp(of client.Source, within time.Duration) bool {
	for _, p := range of.Partitions {
		if p.EndAgeMS == nil || *p.EndAgeMS >= within.Milliseconds() || p.Position != p.End {
			return false
		}
	}
	return len(of.Partitions) > 0
}

func (t *table) sources(all []client.Source) {
	t.row("NAME", "TYPE", "STATE", "PARTITIONS", "LAG", "SECONDS", "RATE", "REJECTED", "REASON")
	for _, of := range all {
		seconds, rate := 0.0, 0.0
		for _, p := range of.Partitions {
			seconds, rate = max(seconds, p.LagSeconds), rate+p.Rate
		}
		t.row(of.Name, of.Type, of.State, len(of.Partitions), orUnknown(of.Lag), fmt.Sprintf("%.1f", seconds), fmt.Sprintf("%.0f/s", rate), of.Rejected, orNone(of.Reason))
	}
}

func (t *table) source(of client.Source) {
	t.sources([]client.Source{of})
	t.gap()
	t.row("PARTITION", "STATE", "NODE", "POSITION", "END", "LAG", "SECONDS", "RATE", "APPLIED", "REJECTED", "REASON")
	for _, p := range of.Partitions {
		t.row(p.Partition, p.State, orNone(p.Node), orNone(string(p.Position)), orNone(string(p.End)), orUnknown(p.Lag), fmt.Sprintf("%.1f", p.LagSeconds),
			fmt.Sprintf("%.0f/s", p.Rate), p.Applied, p.Rejected, orNone(p.Reason))
	}
}

func orUnknown(n *uint64) string {
	if n == nil {
		return "-"
	}
	return grouped(*n)
}
