package csvimport

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
)

// rejectedFileMode is the mode of new files, before the umask.
const rejectedFileMode = 0o666

// rejects is the file of bad rows: line and reason, then the unchanged row, so that it can
// be corrected and imported like the source file. A row that is not CSV is in one quoted
// field. Each row is written before the watermark passes it.
type rejects struct {
	path   string
	header []string
	f      *os.File // nil until the first bad row
	csv    *csv.Writer
}

// openRejects creates the file, or keeps the rows of the run that this one continues, up to
// a line; this run finds the later ones again.
func openRejects(path string, header []string, through int64) (*rejects, error) {
	r := &rejects{path: path, header: append([]string{"line", "reason"}, header...)}
	if through == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot begin the file of rejected rows: %w", err)
		}
		return r, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the file of rejected rows: %w", err)
	}
	end, err := rejectedThrough(f, through)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot continue with %s: %w", path, err)
	}
	r.f, r.csv = f, csv.NewWriter(f)
	return r, nil
}

// rejectedThrough returns the offset after the rows of lines up to through. A crash may have
// left more rows after them.
func rejectedThrough(f io.Reader, through int64) (end int64, err error) {
	in := csv.NewReader(f)
	in.FieldsPerRecord = -1
	if _, err := in.Read(); err != nil {
		return 0, fmt.Errorf("its header is broken: %w", err)
	}
	for {
		end = in.InputOffset()
		record, err := in.Read()
		if err != nil {
			return end, nil
		}
		if line, err := strconv.ParseInt(record[0], 10, 64); err != nil || line > through {
			return end, nil
		}
	}
}

// add appends a row.
func (r *rejects) add(row *RowError, raw []byte) error {
	if r.f == nil {
		f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, rejectedFileMode)
		if err != nil {
			return fmt.Errorf("cannot create the file of rejected rows: %w", err)
		}
		r.f, r.csv = f, csv.NewWriter(f)
		r.csv.Write(r.header) // its error is returned by Flush
	}
	fields := []string{string(raw)}
	parsed := csv.NewReader(bytes.NewReader(raw))
	if record, err := parsed.Read(); err == nil {
		fields = record
	}
	r.csv.Write(slices.Concat([]string{strconv.FormatInt(row.Line, 10), row.Reason}, fields))
	r.csv.Flush()
	if err := r.csv.Error(); err != nil {
		return fmt.Errorf("cannot write %s: %w", r.path, err)
	}
	return nil
}

func (r *rejects) close() error {
	if r.f == nil {
		return nil
	}
	return r.f.Close()
}
