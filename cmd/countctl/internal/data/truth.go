package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
)

// truth holds the columns to compare, and the counts that rows should have in them.
type truth struct {
	columns []string // names of the columns, in the order of the counts in rows
	rows    *bulk.Truth
}

// readTruth reads the truth from a file, or from a database.
func readTruth(ctx context.Context, args []string, f reconcileFlags, keyspace client.Keyspace) (*truth, error) {
	if f.postgres != "" {
		return queryTruth(ctx, f.postgres, f.query, keyspace)
	}
	in, err := bulk.OpenCSV(ctx, args[0])
	if err != nil {
		return nil, err
	}
	defer in.Close()
	t, err := newTruthReader(in.Header(), keyspace)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", args[0], err)
	}
	for {
		record, err := in.Next()
		if errors.Is(err, io.EOF) {
			return &t.truth, nil
		}
		if err != nil {
			return nil, err
		}
		if err := t.add(record); err != nil {
			return nil, in.Bad("%v", err)
		}
	}
}

func queryTruth(ctx context.Context, dsn, query string, keyspace client.Keyspace) (*truth, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, query, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, fmt.Errorf("cannot query: %w", err)
	}
	defer rows.Close()
	var header []string
	for _, field := range rows.FieldDescriptions() {
		header = append(header, field.Name)
	}
	t, err := newTruthReader(header, keyspace)
	for n := 1; err == nil && rows.Next(); n++ {
		record := make([]string, len(header))
		for i, value := range rows.RawValues() {
			if value == nil {
				return nil, fmt.Errorf("cannot query: row %d: %s is null", n, header[i])
			}
			record[i] = string(value)
		}
		if err = t.add(record); err != nil {
			err = fmt.Errorf("row %d: %w", n, err)
		}
	}
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot query: %w", err)
	}
	return &t.truth, nil
}

// truthReader parses records of text and adds them to a truth.
type truthReader struct {
	truth
	keyspace client.Keyspace
	id       int   // index of the id in a record
	places   []int // index of each column in a record
}

func newTruthReader(header []string, keyspace client.Keyspace) (*truthReader, error) {
	t := &truthReader{keyspace: keyspace, id: -1}
	for i, name := range header {
		switch {
		case slices.Contains(header[:i], name):
			return nil, fmt.Errorf("column %q is there twice", name)
		case name == "id":
			t.id = i
		case !slices.Contains(keyspace.Columns, name):
			return nil, fmt.Errorf("keyspace %s has no column %q", keyspace.Name, name)
		default:
			t.columns, t.places = append(t.columns, name), append(t.places, i)
		}
	}
	if t.id < 0 || len(t.columns) == 0 {
		return nil, errors.New("a column id is needed, and a column of the keyspace")
	}
	t.rows = bulk.NewTruth(len(t.columns))
	return t, nil
}

// add adds a record. It returns an error if an earlier record has the same id.
func (t *truthReader) add(record []string) error {
	id, err := t.keyspace.ParseID(record[t.id])
	if err != nil {
		return fmt.Errorf("id: %w", err)
	}
	if t.rows.Has(id) {
		return fmt.Errorf("id: %s is there twice", id)
	}
	row := t.rows.Row(id)
	for i, place := range t.places {
		if row[i], err = strconv.ParseInt(record[place], 10, 64); err != nil {
			return fmt.Errorf("%s: %q is not a signed 64-bit integer", t.columns[i], record[place])
		}
	}
	return nil
}
