package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

const (
	// speedMax is what --speed takes for no waiting at all.
	speedMax = "max"
	// replayTick is how much wall time one batch covers at a speed: events are
	// late by no more than it, and a request carries what came meanwhile.
	replayTick = 100 * time.Millisecond
)

func (c *cli) replayCommand() *cobra.Command {
	f := importFlags{kind: csvimport.KindEvents}
	var speed string
	cmd := &cobra.Command{
		Use:   "replay FILE.csv[.gz]|-",
		Short: "Add the events of a CSV file, one by one",
		Long: `Add 1 for each event of a CSV file with the columns item, t and event, plain or
gzipped: at full speed, or at N times the speed at which t, in seconds, passes.

--map names the column that counts an event; NAME= counts it nowhere. Events
that it does not name are counted by the column of their name, if there is one;
any other is a bad row.

Each event counts once, however often the command or the server is killed and
the command is run again. Its place is in FILE.replay-progress, which stays
there: it is what keeps a file that is done from being added twice, unless
--restart is given. Standard input cannot be read again, so there is no going on
with it.`,
		Example: "  countctl replay events.csv.gz --speed 60 --map retweet=repost,mention=comment,reply=comment",
		Args:    exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.speed, err = parseSpeed(speed); err != nil {
				return err
			}
			return c.addFile(cmd.Context(), args[0], f)
		},
	}
	f.register(cmd, "item")
	flags := cmd.Flags()
	flags.StringSliceVar(&f.mapping, "map", nil, "columns that count events, EVENT=COLUMN,…")
	flags.StringVar(&f.events.Event, "event-column", "event", "column of the file that names the event")
	flags.StringVar(&f.events.Time, "time-column", "t", "column of the file that holds the time in seconds, for --speed")
	flags.StringVar(&speed, "speed", speedMax, "times real time, or max")
	return cmd
}

// parseSpeed returns 0 for max.
func parseSpeed(text string) (float64, error) {
	if text == speedMax {
		return 0, nil
	}
	speed, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(speed) || math.IsInf(speed, 0) || speed <= 0 {
		return 0, usagef("--speed is a number above 0, or %s, not %q", speedMax, text)
	}
	return speed, nil
}

// addFile adds a file's increments, from the flags to the summary.
func (c *cli) addFile(ctx context.Context, path string, f importFlags) error {
	if err := f.check(path); err != nil {
		return err
	}
	var m *meter
	server, err := c.connectWaiting(f.retryFor, &m)
	if err != nil {
		return err
	}
	defer server.Close()
	in, err := c.openCSV(path)
	if err != nil {
		return err
	}
	defer in.Close()
	columns, err := f.columns(ctx, server, in)
	if err != nil {
		return err
	}
	from, err := c.findSession(ctx, server, path, f, columns)
	if err != nil {
		return err
	}
	if from.Session.Done {
		before, rejects := from.Summary(), from.Rejects
		if from.Position.Rejected == 0 {
			rejects = ""
		}
		fmt.Fprintf(c.err, "%s was added before; --restart adds it once more\n", path)
		return c.importDone(importOutput{
			File: path, Keyspace: f.keyspace, Rows: before.Rows,
			Rejected: before.Rejected, RejectsFile: rejects, Overflows: before.Overflows,
			ResumedAfter: from.Position.Line, DoneBefore: true,
		}, f)
	}
	run, err := csvimport.NewReplay(csvimport.ReplayConfig{
		Client: server, InFlight: f.inFlight, Speed: f.speed, Rejects: f.rejects, State: f.state, From: from,
	}, in)
	if err != nil {
		return err
	}
	m = c.startMeter(func() sample {
		return sample{rows: from.Position.Rows + run.RowsAcked(), done: in.BytesRead(), total: in.Size()}
	})
	summary, err := run.Run(ctx)
	took := m.stop()
	if err != nil {
		return explainAdd(err, path, f, summary)
	}
	return c.importDone(importOutput{
		File: path, Keyspace: f.keyspace, Rows: summary.Rows,
		Rejected: summary.Rejected, RejectsFile: f.rejectsFile(from, summary.Position.Rejected), Overflows: summary.Overflows,
		ResumedAfter: from.Position.Line, Seconds: took.Seconds(),
		RowsPerSecond: float64(perSecond(run.RowsAcked(), took)),
	}, f)
}

// columns reads --map and checks it against the keyspace.
func (f *importFlags) columns(ctx context.Context, server *client.Client, in *csvfile.Reader) ([]csvimport.Column, error) {
	if f.kind == csvimport.KindEvents {
		return mapEvents(ctx, server, *f)
	}
	return mapColumns(ctx, server, in, *f)
}

// mapEvents returns the column of each event that is counted. It is kept with
// the session: a column that is made later counts nothing of it.
func mapEvents(ctx context.Context, server *client.Client, f importFlags) ([]csvimport.Column, error) {
	keyspace, err := findKeyspace(ctx, server, f.keyspace)
	if err != nil {
		return nil, err
	}
	var columns []csvimport.Column
	for _, pair := range f.mapping {
		event, counter, ok := strings.Cut(pair, "=")
		if !ok || event == "" {
			return nil, usagef("--map takes EVENT=COLUMN,…, not %q", pair)
		}
		if counter != "" && !slices.Contains(keyspace.Columns, counter) {
			return nil, usagef("keyspace %s has no column %q (it has %s)", keyspace.Name, counter, strings.Join(keyspace.Columns, ", "))
		}
		if hasEvent(columns, event) {
			return nil, usagef("--map names event %q twice", event)
		}
		columns = append(columns, csvimport.Column{File: event, Counter: counter})
	}
	for _, name := range keyspace.Columns {
		if !hasEvent(columns, name) {
			columns = append(columns, csvimport.Column{File: name, Counter: name})
		}
	}
	return columns, nil
}

func hasEvent(columns []csvimport.Column, event string) bool {
	return slices.ContainsFunc(columns, func(c csvimport.Column) bool { return c.File == event })
}

// findSession returns the session of an earlier run, or a new one. A session of
// another file or cluster stops the command: to begin anew in its place would
// forget what it had in flight.
func (c *cli) findSession(ctx context.Context, server *client.Client, path string, f importFlags, columns []csvimport.Column) (csvimport.State, error) {
	about, err := describe(ctx, server, path, f, columns)
	if err != nil {
		return about, err
	}
	begin := about.BeginSession(f.batch, f.speed*replayTick.Seconds())
	if f.state == "" || f.restart {
		return begin, nil
	}
	before, found, err := readState(f.state)
	if err != nil || !found {
		return begin, err
	}
	if !before.SameImport(about) {
		return begin, fmt.Errorf("%s is of another file, server, keyspace or --map; name another --state, or begin anew with --restart, which adds all rows", f.state)
	}
	if !before.Session.Done {
		fmt.Fprintf(c.err, "going on after line %s of %s\n", grouped(before.Position.Line), path)
	}
	return before, nil
}

// explainAdd says how to go on after a run that stopped.
func explainAdd(err error, path string, f importFlags, s csvimport.Summary) error {
	line := grouped(max(s.Position.Line, 1))
	next := fmt.Sprintf("rows up to line %s are added, of those after it some may be", line)
	if f.state != "" {
		next = fmt.Sprintf("run it again to go on after line %s", line)
	}
	var row *csvimport.RowError
	var refused *client.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("adding %s was interrupted; %s", path, next)
	case errors.As(err, &row):
		return fmt.Errorf("%w; skip bad rows with --on-error skip", err)
	case errors.As(err, &refused) && refused.Code == "idempotency_expired":
		return fmt.Errorf("%w; the server has forgotten this session: rows up to line %s are added, of those after it some may be", err, line)
	}
	return fmt.Errorf("%w; %s", err, next)
}
