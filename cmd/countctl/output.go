package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/countd/countd/client"
)

// The values of -o.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// print writes a value as JSON, or as the table that rows fills.
func (c *cli) print(value any, rows func(t *table)) error {
	if c.output == outputJSON {
		e := json.NewEncoder(c.out)
		e.SetEscapeHTML(false)
		return e.Encode(value)
	}
	t := newTable(c.out)
	rows(t)
	return t.flush()
}

// table aligns columns.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer) *table {
	const minWidth, tabWidth, padding = 0, 8, 2
	return &table{tabwriter.NewWriter(out, minWidth, tabWidth, padding, ' ', 0)}
}

// row adds a line.
func (t *table) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, cell)
	}
	fmt.Fprintln(t.w)
}

// line adds a line without columns.
func (t *table) line(text string) { fmt.Fprintln(t.w, text) }

// gap begins another table below.
func (t *table) gap() {
	t.w.Flush() // its error comes back from flush
	fmt.Fprintln(t.w)
}

func (t *table) flush() error { return t.w.Flush() }

// counts adds rows of counts under a header of their columns.
func (t *table) counts(rows []client.Row) {
	if len(rows) == 0 {
		return
	}
	header := []any{"ID"}
	for _, count := range rows[0].Counts {
		header = append(header, strings.ToUpper(count.Column))
	}
	t.row(header...)
	for _, row := range rows {
		cells := []any{row.ID}
		for _, count := range row.Counts {
			cells = append(cells, count.Value)
		}
		t.row(cells...)
	}
}

// rowsWere returns the beginning of a sentence about n rows.
func rowsWere(n int64) string {
	if n == 1 {
		return "1 row was"
	}
	return grouped(n) + " rows were"
}

// counted returns a number with its noun.
func counted[N int | int64 | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + one + "s"
}

// grouped writes a number with commas between thousands.
func grouped[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	if n >= 0 {
		digits = strconv.FormatUint(uint64(n), 10)
	}
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return sign + strings.Join(append([]string{digits}, parts...), ",")
}

// refuseExisting refuses to overwrite a file unless --yes is given. It allows a target that
// is not a regular file, such as a device.
func (c *cli) refuseExisting(path string) error {
	if info, err := os.Stat(path); c.yes || err != nil || !info.Mode().IsRegular() {
		return nil // creating the file reports a bad path
	}
	return fmt.Errorf("%s exists; give another name, or --yes to overwrite it", path)
}
