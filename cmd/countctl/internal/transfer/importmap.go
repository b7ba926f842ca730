package transfer

import (
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

// mapColumns returns the columns of the file that go to columns of the keyspace, by --map.
func (f *importFlags) mapColumns(s *importSource) ([]csvimport.Column, error) {
	switch {
	case f.kind == csvimport.KindEvents:
		return mapEvents(s.keyspace, f.mapping)
	case f.sets.Column != "":
		return []csvimport.Column{{File: f.member, Counter: f.sets.Column}}, cli.HasColumn(s.keyspace, f.sets.Column)
	}
	var columns []csvimport.Column
	for _, pair := range f.mapping {
		from, to, ok := strings.Cut(pair, "=")
		if !ok || from == "" || to == "" {
			return nil, cli.Usagef("--map takes FILE=KEYSPACE,…, not %q", pair)
		}
		if err := cli.HasColumn(s.keyspace, to); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(columns, func(c csvimport.Column) bool { return c.Counter == to }) {
			return nil, cli.Usagef("--map names column %q twice", to)
		}
		columns = append(columns, csvimport.Column{File: from, Counter: to})
	}
	if len(f.mapping) > 0 {
		return columns, nil
	}
	for _, name := range s.in.Header() {
		if name != f.idColumn && slices.Contains(s.keyspace.Columns, name) {
			columns = append(columns, csvimport.Column{File: name, Counter: name})
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

// mapEvents returns the column of each event that is counted. It is kept with
// the session: a column that is made later counts nothing of it.
func mapEvents(keyspace client.Keyspace, mapping []string) ([]csvimport.Column, error) {
	var columns []csvimport.Column
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
