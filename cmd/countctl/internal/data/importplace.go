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

// findPlace returns where the import begins: after the rows of an earlier run of the same import,
// or at the start. If the progress file belongs to another import of values, findPlace prints that,
// and the import begins at the start. That is always right, because values are absolute.
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

// describe returns the source and the target of a run, without its columns. By these, a run
// recognises its progress file.
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

// mapColumns fills in the columns of a run that begins now.
func (s *importSource) mapColumns(about *bulk.FileState, f importFlags) (err error) {
	if about.Columns, err = f.mapColumns(s); err == nil {
		about.Numbers = numbersOf(about.Columns, s.keyspace)
	}
	return err
}

// firstGroup returns the number of a keyspace's first Raft group, which no other keyspace ever has.
// It returns 0 if the caller may not read the number. A node lists the groups of which it has a
// replica; reading other groups needs the rights of an operator.
func firstGroup(ctx context.Context, server *client.Client, cluster admin.Cluster, keyspace string) (uint32, error) {
	for _, g := range cluster.Groups {
		if g.Keyspace == keyspace {
			return g.ID - uint32(g.Shard), nil
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
		if g.Keyspace == keyspace {
			return g.ID - uint32(g.Shard), nil
		}
	}
	return 0, nil
}

// confirm returns the last check of a run. It fails if, during the run, the file was written to
// or the keyspace was dropped and made again.
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

// errMadeAgain is returned by a run during which its keyspace was dropped and made again.
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
// the columns of the session that the keyspace no longer has. A session of another file or cluster
// stops the command: replacing it would lose track of its requests in flight.
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
	if len(before.Differences(about)) > 0 { // a different --map may still map the columns in the same way
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

// mapColumns returns the columns of the file that go to columns of the keyspace, by --map.
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

// mapEvents returns the column of each event that a replay counts, with "" for an event that counts
// for nothing. The session keeps the mapping: a column that is created later counts no events of
// this session.
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

// numbersOf returns the numbers of columns in the keyspace, or -1 for a column that it
// lacks.
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

// gone returns the columns of a session that the keyspace no longer has. A dropped column is gone
// even if a new one has its name.
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
