package transfer

import (
	"context"
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

// columns reads --map and checks it against the keyspace.
func (f *importFlags) columns(ctx context.Context, server *client.Client, in *csvfile.Reader) ([]csvimport.Column, error) {
	if f.kind == csvimport.KindEvents {
		return mapEvents(ctx, server, *f)
	}
	if f.sets.Column != "" {
		_, err := cli.FindColumn(ctx, server, f.keyspace, f.sets.Column)
		return []csvimport.Column{{File: f.member, Counter: f.sets.Column}}, err
	}
	return mapColumns(ctx, server, in, *f)
}

// mapColumns reads --map and checks it against the keyspace.
func mapColumns(ctx context.Context, server *client.Client, in *csvfile.Reader, f importFlags) ([]csvimport.Column, error) {
	keyspace, err := cli.FindCounters(ctx, server, f.keyspace)
	if err != nil {
		return nil, err
	}
	var columns []csvimport.Column
	for _, pair := range f.mapping {
		from, to, ok := strings.Cut(pair, "=")
		if !ok || from == "" || to == "" {
			return nil, cli.Usagef("--map takes FILE=KEYSPACE,…, not %q", pair)
		}
		if !slices.Contains(keyspace.Columns, to) {
			return nil, cli.Usagef("keyspace %s has no column %q (it has %s)", keyspace.Name, to, strings.Join(keyspace.Columns, ", "))
		}
		if slices.ContainsFunc(columns, func(c csvimport.Column) bool { return c.Counter == to }) {
			return nil, cli.Usagef("--map names column %q twice", to)
		}
		columns = append(columns, csvimport.Column{File: from, Counter: to})
	}
	if len(f.mapping) > 0 {
		return columns, nil
	}
	for _, name := range in.Header() {
		if name != f.idColumn && slices.Contains(keyspace.Columns, name) {
			columns = append(columns, csvimport.Column{File: name, Counter: name})
		}
	}
	if len(columns) == 0 {
		return nil, cli.Usagef("no column of %s (%s) has the name of one of keyspace %s (%s); give --map",
			in.Name(), strings.Join(in.Header(), ", "), keyspace.Name, strings.Join(keyspace.Columns, ", "))
	}
	return columns, nil
}

// mapEvents returns the column of each event that is counted. It is kept with
// the session: a column that is made later counts nothing of it.
func mapEvents(ctx context.Context, server *client.Client, f importFlags) ([]csvimport.Column, error) {
	keyspace, err := cli.FindCounters(ctx, server, f.keyspace)
	if err != nil {
		return nil, err
	}
	var columns []csvimport.Column
	for _, pair := range f.mapping {
		event, counter, ok := strings.Cut(pair, "=")
		if !ok || event == "" {
			return nil, cli.Usagef("--map takes EVENT=COLUMN,…, not %q", pair)
		}
		if counter != "" && !slices.Contains(keyspace.Columns, counter) {
			return nil, cli.Usagef("keyspace %s has no column %q (it has %s)", keyspace.Name, counter, strings.Join(keyspace.Columns, ", "))
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
