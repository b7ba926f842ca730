package bulk

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/countd/countd/client"
)

type rowParser struct {
	in      *CSVReader
	id      int   // the id's field
	fields  []int // index of the field of each column
	columns []Column
	format  Format
	gone    []string // columns that the keyspace no longer has; their increments are left out
	ids     IDParsers
}

// IDParsers parse the ids in a file. A nil function takes any id.
type IDParsers struct {
	Row, Member func(text string) (client.ID, error)
}

func (p *IDParsers) row(text string) (client.ID, error)    { return parseID(p.Row, text) }
func (p *IDParsers) member(text string) (client.ID, error) { return parseID(p.Member, text) }

func parseID(parse func(string) (client.ID, error), text string) (client.ID, error) {
	if parse == nil {
		return client.ParseID(text)
	}
	return parse(text)
}

// newRowParser returns a parser for the columns that cfg.From names. It returns an error if the header
// of the file lacks one of them.
func newRowParser(in *CSVReader, cfg *FileConfig) (*rowParser, error) {
	about := cfg.From
	p := &rowParser{in: in, columns: about.Columns, format: about.Format, gone: cfg.Gone, ids: cfg.IDs}
	var err error
	if p.id, err = findColumn(in, about.IDColumn, "--id-column"); err != nil {
		return p, err
	}
	for _, c := range about.Columns {
		field, err := findColumn(in, c.File, "--map")
		if err != nil {
			return p, err
		}
		p.fields = append(p.fields, field)
	}
	return p, nil
}

// findColumn returns the index of a column of the file. flag is the command-line flag that names
// the column, for errors.
func findColumn(in *CSVReader, name, flag string) (int, error) {
	header := in.Header()
	field := slices.Index(header, name)
	if field < 0 {
		mend := flag + " names another"
		if only := header[0]; len(header) == 1 && strings.ContainsAny(only, ";\t|") {
			mend = fmt.Sprintf("if the fields are parted by another character than %q, give --delimiter", in.Delimiter())
		}
		return 0, in.Bad("the header has no column %q (it has %s); %s", name, strings.Join(header, ", "), mend)
	}
	if slices.Contains(header[field+1:], name) {
		return 0, in.Bad("the header has the column %q twice", name)
	}
	return field, nil
}

func (p *rowParser) parseMember(record []string) (id, member client.ID, err error) {
	if id, err = p.ids.row(record[p.id]); err != nil {
		return id, member, p.in.Bad("id: %v", err)
	}
	if member, err = p.ids.member(record[p.fields[0]]); err != nil {
		return id, member, p.in.Bad("member: %v", err)
	}
	return id, member, nil
}

// parse parses a record's id and counts. It keeps no reference to the record.
func (p *rowParser) parse(record []string) (client.ID, client.Counts, error) {
	id, err := p.ids.row(record[p.id])
	if err != nil {
		return id, nil, p.in.Bad("id: %v", err)
	}
	cells := make(client.Counts, len(p.fields))
	for i, field := range p.fields {
		cells[i].Column = p.columns[i].Counter
		if record[field] == "" && p.format.EmptyAsZero {
			continue
		}
		value, err := strconv.ParseInt(record[field], 10, 64)
		if err != nil {
			reason := fmt.Sprintf("%s: %q is not a signed 64-bit integer", p.columns[i].File, record[field])
			if record[field] == "" {
				reason += "; --empty-as-zero reads it as 0"
			}
			return id, nil, p.in.Bad("%s", reason)
		}
		cells[i].Value = value
	}
	return id, cells, nil
}
