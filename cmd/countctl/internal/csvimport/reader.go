package csvimport

import (
	"context"
	"errors"
	"io"

	"github.com/countd/countd/cmd/countctl/internal/csvfile"
)

// rowReader reads the records of a file that no earlier run has handled, and writes bad ones
// to the rejects. Its methods must not be called concurrently.
type rowReader struct {
	in      *csvfile.Reader
	from    Position         // records up to its line are dealt with
	rejects *rejects         // nil when a bad row stops the run
	passed  func(line int64) // called for each rejected row
}

// openRejects creates the file of bad rows or opens it to continue; without a path there is
// none.
func (r *rowReader) openRejects(path string) error {
	if path == "" {
		return nil
	}
	through := r.from.Line
	if r.from.Rejected == 0 {
		through = 0 // what is there was not synced before the progress, if it is of this import
	}
	var err error
	if r.rejects, err = openRejects(path, r.in.Header(), through); err == nil {
		r.rejects.comma = r.in.Delimiter()
	}
	return err
}

// sync makes the rejects durable that were written so far. It may be called concurrently
// with the other methods.
func (r *rowReader) sync() error {
	if r.rejects == nil {
		return nil
	}
	return r.rejects.sync()
}

func (r *rowReader) close() error {
	if r.rejects == nil {
		return nil
	}
	return r.rejects.close()
}

// next returns the next valid CSV record and its line; it is valid until the next call. It
// returns io.EOF at the end, ctx's error when that ended, and a *RowError for a bad record
// that may not be skipped.
func (r *rowReader) next(ctx context.Context) (record []string, line int64, err error) {
	for ctx.Err() == nil {
		record, err := r.in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, 0, io.EOF
		case err == nil && r.in.Line() > r.from.Line:
			return record, r.in.Line(), nil
		case err != nil:
			if err := r.reject(err); err != nil {
				return nil, 0, err
			}
		}
	}
	return nil, 0, ctx.Err()
}

// reject writes the latest bad row to the rejects. It returns the error if that is not
// allowed.
func (r *rowReader) reject(err error) error {
	var row *RowError
	var record *csvfile.BadRecordError
	switch {
	case errors.As(err, &row):
	case errors.As(err, &record):
		row = &RowError{Name: r.in.Name(), Line: record.Line, Reason: record.Reason}
	default:
		return err
	}
	if row.Line <= r.from.Line {
		return nil // rejected by the previous run
	}
	if r.rejects == nil {
		return row
	}
	if err := r.rejects.add(row, r.in.Raw()); err != nil {
		return err
	}
	r.passed(row.Line)
	return nil
}
