package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

// findPlace returns where the import begins: behind what an earlier run of the
// same import did, or at the start. To begin again is always right, as values
// are absolute, so a progress file of another import is only reported.
func findPlace(ctx context.Context, c *cli.CLI, s *importSource, f importFlags) (csvimport.State, error) {
	if f.state == "" {
		return csvimport.State{}, nil
	}
	about, err := describe(ctx, s, f)
	if err != nil || f.restart {
		return about.Begin(), err
	}
	before, found, err := readState(f.state)
	if err != nil || !found {
		return about.Begin(), err
	}
	if differ := before.Differences(about); len(differ) > 0 {
		fmt.Fprintf(c.Err, "%s is of another import (other: %s): beginning at the first row\n", f.state, strings.Join(differ, "; "))
		return about.Begin(), nil
	}
	fmt.Fprintf(c.Err, "going on after line %s of %s\n", cli.Grouped(before.Position.Line), s.path)
	return before, nil
}

// describe returns the source and the target of a run, by which it recognises the progress
// file of an earlier run.
func describe(ctx context.Context, s *importSource, f importFlags) (csvimport.State, error) {
	about := csvimport.State{
		Kind: f.kind, Addr: s.server.Addr(), Keyspace: f.keyspace,
		IDColumn: f.idColumn, Events: f.events, Columns: s.columns,
	}
	if s.path == cli.StreamName {
		return about, nil
	}
	var err error
	if about.Input, err = csvfile.Identify(ctx, s.path); err != nil {
		return about, fmt.Errorf("cannot identify %s: %w", s.path, err)
	}
	cluster, err := s.server.Cluster(ctx)
	if err != nil {
		return about, fmt.Errorf("cannot read the cluster's state: %w", err)
	}
	about.Cluster = cluster.ClusterID
	return about, nil
}

func readState(path string) (csvimport.State, bool, error) {
	state, found, err := csvimport.ReadState(path)
	if errors.Is(err, csvimport.ErrBadState) {
		err = fmt.Errorf("%w; without it, or with another --state, the import starts again with the first row", err)
	}
	return state, found, err
}

// explainImport explains how to continue an import that stopped.
func explainImport(err error, path string, f importFlags, s csvimport.Summary) error {
	next := "run it again to start from the beginning"
	if f.state != "" {
		next = fmt.Sprintf("run it again to continue after line %s", cli.Grouped(max(s.Position.Line, 1)))
	}
	var row *csvimport.RowError
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("the import of %s was interrupted; %s", path, next)
	case errors.As(err, &row):
		return fmt.Errorf("%w; mend it, or skip bad rows with --on-error skip", err)
	}
	return fmt.Errorf("%w; %s", err, next)
}

// findSession returns the session of an earlier run, or a new one. A session of another file
// or cluster stops the command: replacing it would lose track of its requests in flight.
func findSession(ctx context.Context, c *cli.CLI, s *importSource, f importFlags) (csvimport.State, error) {
	about, err := describe(ctx, s, f)
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
	if differ := before.Differences(about); len(differ) > 0 {
		return begin, fmt.Errorf("%s is of another run (other: %s), and nothing was added now; "+
			"--restart and another --state both begin at the first row and add all rows, "+
			"a second time if the other run has added them (up to line %s, and perhaps beyond)",
			f.state, strings.Join(differ, "; "), cli.Grouped(max(before.Position.Line, 1)))
	}
	if !before.Session.Done {
		fmt.Fprintf(c.Err, "going on after line %s of %s\n", cli.Grouped(before.Position.Line), s.path)
	}
	return before, nil
}

// explainAdd explains how to continue a run that stopped.
func explainAdd(err error, path string, f importFlags, s csvimport.Summary) error {
	line := cli.Grouped(max(s.Position.Line, 1))
	next := fmt.Sprintf("rows up to line %s are added, and later ones may be", line)
	if f.state != "" {
		next = fmt.Sprintf("run it again to continue after line %s", line)
	}
	var row *csvimport.RowError
	var refused *client.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("adding %s was interrupted; %s", path, next)
	case errors.As(err, &row):
		return fmt.Errorf("%w; skip bad rows with --on-error skip", err)
	case errors.As(err, &refused) && refused.Code == "idempotency_expired":
		return fmt.Errorf("%w; the server has forgotten this session: rows up to line %s are added, and later ones may be", err, line)
	}
	return fmt.Errorf("%w; %s", err, next)
}
