package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/countd/countd/client"
)

// The values of the flag -o.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// Answer prints the answer to a request, like Print. If the request failed with err, it returns err
// with "cannot" and task before it.
func (c *CLI) Answer(err error, task string, v any, rows func(*Table)) error {
	if err != nil {
		return fmt.Errorf("cannot %s: %w", task, err)
	}
	return c.Print(v, rows)
}

// Print prints value as JSON if -o is json. Otherwise it prints the table that rows fills.
func (c *CLI) Print(value any, rows func(t *Table)) error {
	if c.output == outputJSON {
		e := json.NewEncoder(c.Out)
		e.SetEscapeHTML(false)
		return e.Encode(value)
	}
	t := NewTable(c.Out)
	rows(t)
	return t.Flush()
}

// Table aligns columns.
type Table struct{ w *tabwriter.Writer }

// NewTable returns an empty table; Flush writes it to out.
func NewTable(out io.Writer) *Table {
	const minWidth, tabWidth, padding = 0, 8, 2
	return &Table{tabwriter.NewWriter(out, minWidth, tabWidth, padding, ' ', 0)}
}

// Row adds a line.
func (t *Table) Row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, cell)
	}
	fmt.Fprintln(t.w)
}

// Gap ends the current table and writes an empty line. Later rows form a table of their
// own.
func (t *Table) Gap() {
	t.w.Flush() // ignore the error: a later Flush returns it if the output is broken
	fmt.Fprintln(t.w)
}

// Flush writes the table.
func (t *Table) Flush() error { return t.w.Flush() }

// Counts adds a header line with the names of the columns, and then the rows. idHeader is the
// header of the first column, the ids.
func (t *Table) Counts(idHeader string, rows ...client.Row) {
	for i, row := range rows {
		header, cells := []any{idHeader}, []any{row.ID}
		for _, count := range row.Counts {
			header, cells = append(header, strings.ToUpper(count.Column)), append(cells, count.Value)
		}
		if i == 0 {
			t.Row(header...)
		}
		t.Row(cells...)
	}
}

// WereCounted returns the beginning of a sentence about n objects, such as "2 rows were".
func WereCounted[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun + " was"
	}
	return Counted(n, noun) + " were"
}

// Counted returns a number with its noun, such as "1 row" or "2 rows".
func Counted[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Grouped(n) + " " + noun + "s"
}

// Grouped writes a number with commas between thousands.
func Grouped[N int | int64 | uint64](n N) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// RefuseExisting refuses to overwrite a file unless --yes is given. It allows a target that
// is not a regular file, such as a device.
func (c *CLI) RefuseExisting(path string) error {
	if info, err := os.Stat(path); c.Yes || err != nil || !info.Mode().IsRegular() {
		return nil // ignore a bad path: the error comes when the file is created
	}
	return fmt.Errorf("%s exists; give another name, or --yes to overwrite it", path)
}

// StreamName stands for standard input or output among file names.
const StreamName = "-"

// SameFile reports whether two paths name one file. The file need not exist.
func SameFile(a, b string) bool {
	is, err1 := os.Stat(a)
	other, err2 := os.Stat(b)
	if err1 == nil && err2 == nil {
		return os.SameFile(is, other)
	}
	a, err1 = filepath.Abs(a)
	b, err2 = filepath.Abs(b)
	return err1 == nil && err2 == nil && a == b
}
