package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// findPlace returns the state with which an import of values begins: that of an earlier run of the
// same import, or a new one. If the progress file belongs to increments, findPlace returns an
// error. If it belongs to another import of values, findPlace prints that and returns a new state.
// It is always correct to begin at the start, because values are absolute.
func findPlace(ctx context.Context, c *cli.CLI, s *importSource, f importFlags) (bulk.FileState, error) {
	about, err := describe(ctx, s, f)
	if err == nil {
		err = s.mapColumns(&about, f)
	}
	if err != nil || f.state == "" {
		return about.Begin(bulk.FileState{}), err
	}
	before, found, err := readState(f)
	if err != nil || !found {
		return about.Begin(bulk.FileState{}), err
	}
	if before.Session != nil {
		return about, fmt.Errorf("%s is the progress file of increments, which keeps them from being added twice; name another --state", f.state)
	}
	if f.restart {
		return about.Begin(before), nil
	}
	if differ := before.Differences(about); len(differ) > 0 {
		fmt.Fprintf(c.Err, "%s is of another import (other: %s): beginning at the first row\n", f.state, strings.Join(differ, "; "))
		return about.Begin(before), nil
	}
	if before.Position.Line > 0 {
		fmt.Fprintf(c.Err, "going on after line %s of %s\n", cli.Grouped(before.Position.Line), s.path)
	}
	return before, nil
}

// describe returns a state that describes the source and the target of a run, without the columns.
// The run compares this state with the one in the progress file.
func describe(ctx context.Context, s *importSource, f importFlags) (bulk.FileState, error) {
	about := f.about
	about.Input, about.Addr = s.input, s.server.Addr()
	if s.path == cli.StreamName {
		return about, nil
	}
	cluster, err := admin.New(s.server).Cluster(ctx)
	if err != nil {
		return about, fmt.Errorf("cannot read the cluster's state: %w", err)
	}
	about.Cluster = cluster.ClusterID
	about.FirstGroup, err = firstGroup(ctx, s.server, cluster, f.about.Keyspace)
	return about, err
}

// mapColumns sets the columns of about and their numbers, from the flags, the file and the
// keyspace.
func (s *importSource) mapColumns(about *bulk.FileState, f importFlags) (err error) {
	if about.Columns, err = f.mapColumns(s); err == nil {
		about.Numbers = numbersOf(about.Columns, s.keyspace)
	}
	return err
}

// firstGroup returns the number of the Raft group of a keyspace's shard 0. A keyspace that is dropped
// and created again has another number. firstGroup looks first in the argument cluster, which contains
// only groups with a replica on the node. It then asks for all groups, which only operators may do.
// If it does not find the group, it returns 0.
func firstGroup(ctx context.Context, server *client.Client, cluster admin.Cluster, keyspace string) (uint32, error) {
	for _, g := range cluster.Groups {
		if g.Keyspace == keyspace && g.Shard == 0 {
			return g.ID, nil
		}
	}
	groups, err := admin.New(server).ClusterGroups(ctx)
	if refused := new(client.Error); errors.As(err, &refused) && refused.Status/100 == 4 {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot list the groups: %w", err)
	}
	for _, g := range groups {
		if g.Keyspace == keyspace && g.Shard == 0 {
			return g.ID, nil
		}
	}
	return 0, nil
}

// confirm returns the function for FileConfig.Confirm. That function returns an error if the file
// was written to during the run, or if the keyspace was dropped and created again.
func (s *importSource) confirm(from bulk.FileState, f importFlags) func(context.Context) error {
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

// errMadeAgain is returned if the keyspace was dropped and created again during the run.
var errMadeAgain = errors.New("the keyspace was dropped and made again meanwhile, and what was written before went with it")

func readState(f importFlags) (bulk.FileState, bool, error) {
	state, found, err := bulk.ReadFileState(f.state)
	switch {
	case errors.Is(err, bulk.ErrBadFileState) && f.restart:
		err = fmt.Errorf("%w, and is not overwritten; remove it or name another --state", err)
	case errors.Is(err, bulk.ErrBadFileState):
		err = fmt.Errorf("%w; without it, or with another --state, the import starts again with the first row", err)
	}
	return state, found, err
}

func explainImport(err error, path string, f importFlags, s bulk.Summary) error {
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
	var row *bulk.RowError
	var refused *client.Error
	switch {
	case errors.Is(err, bulk.ErrChanged):
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

// findSession returns the state of an earlier run, or a state with a new session. It also returns
// the columns of the session that the keyspace no longer has. If the progress file has a session of
// another file or cluster, it returns an error. It does not replace that session, because requests
// of that session may still be in flight.
func findSession(ctx context.Context, c *cli.CLI, s *importSource, f importFlags) (bulk.FileState, []string, error) {
	about, err := describe(ctx, s, f)
	if err != nil {
		return about, nil, err
	}
	before, found := bulk.FileState{}, false
	if f.state != "" {
		if before, found, err = readState(f); err != nil {
			return about, nil, err
		}
	}
	if !found || f.restart {
		err := s.mapColumns(&about, f)
		return about.BeginSession(f.batch, f.speed*replayTick.Seconds()), nil, err
	}
	if len(before.Differences(about)) > 0 { // another --map is no difference if it gives the same columns
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

// mapColumns returns which columns of the file go to which columns of the keyspace, as --map
// defines.
func (f *importFlags) mapColumns(s *importSource) ([]bulk.Column, error) {
	switch {
	case f.about.Kind == bulk.KindEvents:
		return mapEvents(s.keyspace, f.about.Map)
	case f.column != "":
		return []bulk.Column{{File: f.member, Counter: f.column}}, cli.HasColumn(s.keyspace, f.column)
	}
	var columns []bulk.Column
	for _, pair := range f.about.Map {
		from, to, ok := strings.Cut(pair, "=")
		if !ok || from == "" || to == "" {
			return nil, cli.Usagef("--map takes FILE=KEYSPACE,…, not %q", pair)
		}
		if err := cli.HasColumn(s.keyspace, to); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(columns, func(c bulk.Column) bool { return c.Counter == to }) {
			return nil, cli.Usagef("--map names column %q twice", to)
		}
		columns = append(columns, bulk.Column{File: from, Counter: to})
	}
	if len(columns) > 0 {
		return columns, nil
	}
	for _, name := range s.in.Header() {
		if name != f.about.IDColumn && slices.Contains(s.keyspace.Columns, name) {
			columns = append(columns, bulk.Column{File: name, Counter: name})
		}
	}
	if len(columns) == 0 {
		give := "--map FILE=KEYSPACE"
		if len(s.in.Header()) == 1 {
			give += ", or --delimiter"
		}
		return nil, cli.Usagef("no column of %s (%s) has the name of one of keyspace %s (%s); give %s",
			s.in.Name(), strings.Join(s.in.Header(), ", "), s.keyspace.Name, strings.Join(s.keyspace.Columns, ", "), give)
	}
	return columns, nil
}

// mapEvents returns the column for each event of a replay, with "" for an event that changes no
// column. An event with the name of a column goes to that column, unless mapping has the event. The
// result is stored in the session, so the session does not use a column that is created later.
func mapEvents(keyspace client.Keyspace, mapping []string) ([]bulk.Column, error) {
	var columns []bulk.Column
	for _, pair := range mapping {
		event, counter, ok := strings.Cut(pair, "=")
		if !ok || event == "" {
			return nil, cli.Usagef("--map takes EVENT=COLUMN,…, not %q", pair)
		}
		if counter != "" {
			if err := cli.HasColumn(keyspace, counter); err != nil {
				return nil, err
			}
		}
		if hasEvent(columns, event) {
			return nil, cli.Usagef("--map names event %q twice", event)
		}
		columns = append(columns, bulk.Column{File: event, Counter: counter})
	}
	for _, name := range keyspace.Columns {
		if !hasEvent(columns, name) {
			columns = append(columns, bulk.Column{File: name, Counter: name})
		}
	}
	return columns, nil
}

func hasEvent(columns []bulk.Column, event string) bool {
	return slices.ContainsFunc(columns, func(c bulk.Column) bool { return c.File == event })
}

// numbersOf returns the numbers of the columns in the keyspace, with -1 for a column that the
// keyspace lacks.
func numbersOf(columns []bulk.Column, keyspace client.Keyspace) []int {
	names, numbers := keyspace.Numbered(), make([]int, len(columns))
	for i, c := range columns {
		numbers[i] = -1
		if c.Counter != "" {
			numbers[i] = slices.Index(names, c.Counter)
		}
	}
	return numbers
}

// gone returns the columns of a session that the keyspace no longer has. This includes a dropped
// column even if a new column has the same name.
func gone(session bulk.FileState, keyspace client.Keyspace) []string {
	var columns []string
	for i, c := range session.Columns {
		dropped := i < len(session.Numbers) && slices.Contains(keyspace.DroppedColumns, session.Numbers[i])
		if c.Counter != "" && (dropped || !slices.Contains(keyspace.Columns, c.Counter)) && !slices.Contains(columns, c.Counter) {
			columns = append(columns, c.Counter)
		}
	}
	return columns
}
