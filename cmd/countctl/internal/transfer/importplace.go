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
	about, err := describe(ctx, s, f)
	if err == nil {
		err = s.mapColumns(&about, f)
	}
	if err != nil || f.state == "" {
		return about.Begin(), err
	}
	before, found, err := readState(f)
	if err != nil || !found {
		return about.Begin(), err
	}
	if before.Session != nil {
		return about, fmt.Errorf("%s is the progress file of increments, which keeps them from being added twice; name another --state", f.state)
	}
	if f.restart {
		return about.BeginAfter(before), nil
	}
	if differ := before.Differences(about); len(differ) > 0 {
		fmt.Fprintf(c.Err, "%s is of another import (other: %s): beginning at the first row\n", f.state, strings.Join(differ, "; "))
		return about.BeginAfter(before), nil
	}
	if before.Position.Line > 0 {
		fmt.Fprintf(c.Err, "going on after line %s of %s\n", cli.Grouped(before.Position.Line), s.path)
	}
	return before, nil
}

// describe returns the source and the target of a run, without its columns, by which it
// recognises the progress file of an earlier run.
func describe(ctx context.Context, s *importSource, f importFlags) (csvimport.State, error) {
	about := f.about
	about.Input, about.Addr = s.input, s.server.Addr()
	if s.path == cli.StreamName {
		return about, nil
	}
	cluster, err := s.server.Cluster(ctx)
	if err != nil {
		return about, fmt.Errorf("cannot read the cluster's state: %w", err)
	}
	about.Cluster = cluster.ClusterID
	about.FirstGroup, err = firstGroup(ctx, s.server, cluster, f.about.Keyspace)
	return about, err
}

// mapColumns fills in the columns of a run that begins now.
func (s *importSource) mapColumns(about *csvimport.State, f importFlags) (err error) {
	if about.Columns, err = f.mapColumns(s); err == nil {
		about.Numbers = numbersOf(about.Columns, s.keyspace)
	}
	return err
}

// firstGroup returns the number of a keyspace's first Raft group, which no other keyspace
// ever has, or 0 if the server may not tell it. A node lists the groups of which it has a
// replica; the others take the rights of an operator.
func firstGroup(ctx context.Context, server *client.Client, cluster client.Cluster, keyspace string) (uint32, error) {
	for _, g := range cluster.Groups {
		if g.Keyspace == keyspace {
			return g.ID - uint32(g.Shard), nil
		}
	}
	groups, err := server.Admin().ClusterGroups(ctx)
	if refused := new(client.Error); errors.As(err, &refused) && refused.Status/100 == 4 {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot list the groups: %w", err)
	}
	for _, g := range groups {
		if g.Keyspace == keyspace {
			return g.ID - uint32(g.Shard), nil
		}
	}
	return 0, nil
}

// confirm returns what a run does at its end: it refuses to call the import done if the file
// was written to, or the keyspace was dropped and made again, while the run went on.
func (s *importSource) confirm(from csvimport.State, f importFlags) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.in.Unchanged(); err != nil {
			return err
		}
		now, err := describe(ctx, s, f)
		if err == nil && from.FirstGroup != 0 && now.FirstGroup != 0 && now.FirstGroup != from.FirstGroup {
			err = fmt.Errorf("%w: %s", errMadeAgain, f.about.Keyspace)
		}
		return err
	}
}

// errMadeAgain is returned by a run during which its keyspace was dropped and made again.
var errMadeAgain = errors.New("the keyspace was dropped and made again meanwhile, and what was written before went with it")

func readState(f importFlags) (csvimport.State, bool, error) {
	state, found, err := csvimport.ReadState(f.state)
	switch {
	case errors.Is(err, csvimport.ErrBadState) && f.restart:
		err = fmt.Errorf("%w, and is not overwritten; remove it or name another --state", err)
	case errors.Is(err, csvimport.ErrBadState):
		err = fmt.Errorf("%w; without it, or with another --state, the import starts again with the first row", err)
	}
	return state, found, err
}

// explainImport explains how to continue an import that stopped.
func explainImport(err error, path string, f importFlags, s csvimport.Summary) error {
	line := cli.Grouped(max(s.Position.Line, 1))
	next, changed, again := "run it again to start from the beginning", "run it again", "run it again"
	if f.about.Adds() {
		next = fmt.Sprintf("rows up to line %s are added, and later ones may be", line)
		changed = fmt.Sprintf("the rows up to line %s were added as they were", line)
		again = "--restart adds all rows to the new one"
	}
	lost := next
	if f.state != "" {
		next = "run it again to continue after line " + line
	}
	var row *csvfile.RowError
	var refused *client.Error
	switch {
	case errors.Is(err, csvfile.ErrChanged):
		next = changed
	case errors.Is(err, errMadeAgain):
		next = again
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("the import of %s was interrupted; %s", path, next)
	case errors.As(err, &row) && f.about.Adds():
		next = "skip bad rows with --on-error skip"
	case errors.As(err, &row):
		next = "mend it, or skip bad rows with --on-error skip"
	case errors.As(err, &refused) && refused.Code == "idempotency_expired" && f.about.Adds():
		next = "the server has forgotten this session: " + lost
	}
	return fmt.Errorf("%w; %s", err, next)
}

// findSession returns the session of an earlier run, or a new one, and the columns of it that
// the keyspace has no more. A session of another file or cluster stops the command: replacing
// it would lose track of its requests in flight.
func findSession(ctx context.Context, c *cli.CLI, s *importSource, f importFlags) (csvimport.State, []string, error) {
	about, err := describe(ctx, s, f)
	if err != nil {
		return about, nil, err
	}
	before, found := csvimport.State{}, false
	if f.state != "" {
		if before, found, err = readState(f); err != nil {
			return about, nil, err
		}
	}
	if !found || f.restart {
		err := s.mapColumns(&about, f)
		return about.BeginSession(f.batch, f.speed*replayTick.Seconds()), nil, err
	}
	if len(before.Differences(about)) > 0 { // which may be that of --map alone
		if err := s.mapColumns(&about, f); err != nil {
			return about, nil, err
		}
	}
	differ := before.Differences(about)
	switch {
	case before.MadeAgain(about):
		return about, nil, fmt.Errorf("keyspace %s was dropped and made again since %s was begun, and the rows that were added went with it; --restart adds all rows to the new one",
			f.about.Keyspace, f.state)
	case len(differ) > 0:
		return about, nil, fmt.Errorf("%s is of another run (other: %s), and nothing was added now; "+
			"with the file and the flags of that run it goes on; "+
			"--restart and another --state both begin at the first row and add all rows, "+
			"a second time if the other run has added them (up to line %s, and perhaps beyond)",
			f.state, strings.Join(differ, "; "), cli.Grouped(max(before.Position.Line, 1)))
	case before.Session.Done:
		return before, nil, nil
	}
	missing := gone(before, s.keyspace)
	fmt.Fprintf(c.Err, "going on after line %s of %s\n", cli.Grouped(before.Position.Line), s.path)
	if len(missing) > 0 {
		fmt.Fprintf(c.Err, "dropped since the first run, so that nothing more is added to them: %s\n", strings.Join(missing, ", "))
	}
	return before, missing, nil
}
