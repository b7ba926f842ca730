package transfer

import (
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

// mapColumns returns the columns of the file that go to columns of the keyspace, by --map. For a
// replay, these are the events that count, with "" for one that counts for nothing. The session
// keeps them: a column that is made later counts nothing of it.
func (f *importFlags) mapColumns(s *importSource) ([]csvimport.Column, error) {
	if f.column != "" {
		return []csvimport.Column{{File: f.member, Counter: f.column}}, cli.HasColumn(s.keyspace, f.column)
	}
	events := f.about.Kind == csvimport.KindEvents
	pairs := "FILE=KEYSPACE"
	if events {
		pairs = "EVENT=COLUMN"
	}
	var columns []csvimport.Column
	for _, pair := range f.about.Map {
		from, to, ok := strings.Cut(pair, "=")
		if !ok || from == "" || to == "" && !events {
			return nil, cli.Usagef("--map takes %s,…, not %q", pairs, pair)
		}
		if to != "" {
			if err := cli.HasColumn(s.keyspace, to); err != nil {
				return nil, err
			}
		}
		switch {
		case events && hasEvent(columns, from):
			return nil, cli.Usagef("--map names event %q twice", from)
		case !events && slices.ContainsFunc(columns, func(c csvimport.Column) bool { return c.Counter == to }):
			return nil, cli.Usagef("--map names column %q twice", to)
		}
		columns = append(columns, csvimport.Column{File: from, Counter: to})
	}
	if len(columns) > 0 && !events {
		return columns, nil
	}
	names := s.in.Header()
	if events {
		names = s.keyspace.Columns
	}
	for _, name := range names {
		if events && !hasEvent(columns, name) || !events && name != f.about.IDColumn && slices.Contains(s.keyspace.Columns, name) {
			columns = append(columns, csvimport.Column{File: name, Counter: name})
		}
	}
	if len(columns) == 0 && !events {
		give := "--map FILE=KEYSPACE"
		if len(s.in.Header()) == 1 {
			give += ", or --delimiter"
		}
		return nil, cli.Usagef("no column of %s (%s) has the name of one of keyspace %s (%s); give %s",
			s.in.Name(), strings.Join(s.in.Header(), ", "), s.keyspace.Name, strings.Join(s.keyspace.Columns, ", "), give)
	}
	return columns, nil
}

func hasEvent(columns []csvimport.Column, event string) bool {
	return slices.ContainsFunc(columns, func(c csvimport.Column) bool { return c.File == event })
}

// numbersOf returns the numbers of columns in the keyspace, -1 for one that it has not.
func numbersOf(columns []csvimport.Column, keyspace client.Keyspace) []int {
	names, numbers := keyspace.Numbered(), make([]int, len(columns))
	for i, c := range columns {
		numbers[i] = -1
		if c.Counter != "" {
			numbers[i] = slices.Index(names, c.Counter)
		}
	}
	return numbers
}

// gone returns the columns of a session that the keyspace has no more. A column that was
// dropped is gone although one of its name was made since.
func gone(session csvimport.State, keyspace client.Keyspace) []string {
	var columns []string
	for i, c := range session.Columns {
		dropped := i < len(session.Numbers) && slices.Contains(keyspace.DroppedColumns, session.Numbers[i])
		if c.Counter != "" && (dropped || !slices.Contains(keyspace.Columns, c.Counter)) && !slices.Contains(columns, c.Counter) {
			columns = append(columns, c.Counter)
		}
	}
	return columns
}
