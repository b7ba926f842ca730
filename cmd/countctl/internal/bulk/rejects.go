package bulk

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/countd/countd/internal/program"
)

const rejectedFileMode = 0o666

// ErrNotRejects is returned if the file for rejects exists and holds something else.
var ErrNotRejects = errors.New("not a file of rejected rows; remove it, or name another with --rejects")

// The first two columns of the rejects.
const (
	lineColumn   = "line"
	reasonColumn = "reason"
)

// rejects is the file of bad rows. Each has the line, the reason and the unchanged row, so
// that the file can be corrected and imported like the source file. A row that is not CSV
// is in one quoted field. Each row is written before the watermark passes it, and synced
// before the progress file passes it.
type rejects struct {
	path   string
	header []string
	comma  rune // delimiter of the source file and of new rejects

	mu struct {
		sync.Mutex
		f        *os.File // nil until the first bad row
		csv      *csv.Writer
		unsynced bool
	}
}

// openRejects prepares the file; add creates it with the first bad row. In an existing file it
// keeps the rows up to lastLine and removes later ones, because this run finds those again. If
// lastLine is 0, it removes the file.
func openRejects(path string, in *CSVReader, lastLine int64) (*rejects, error) {
	r := &rejects{path: path, header: append([]string{lineColumn, reasonColumn}, in.Header()...), comma: in.Delimiter()}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the file of rejected rows: %w", err)
	}
	comma, end, err := rejectedThrough(f, lastLine)
	if err == nil && lastLine == 0 {
		f.Close()
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("cannot begin the file of rejected rows: %w", err)
		}
		return r, nil
	}
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
	r.use(f, comma)
	return r, nil
}

func (r *rejects) use(f *os.File, comma rune) {
	r.mu.f, r.mu.csv = f, csv.NewWriter(f)
	r.mu.csv.Comma = comma
}

// rejectedThrough returns the delimiter of rejects, and the offset after the rows up to
// lastLine. A crash may have left later rows, or only a part of the header.
func rejectedThrough(f io.Reader, lastLine int64) (comma rune, end int64, err error) {
	buffered := bufio.NewReader(f)
	start, _ := buffered.Peek(len(lineColumn) + utf8.UTFMax + len(reasonColumn)) // the next read returns the error too
	rest, isRejects := strings.CutPrefix(string(start), lineColumn)
	comma, size := utf8.DecodeRuneInString(rest)
	if !isRejects || !strings.HasPrefix(rest[size:], reasonColumn) {
		if lastLine == 0 && strings.HasPrefix(lineColumn+","+reasonColumn, string(start)) {
			return ',', 0, nil
		}
		return 0, 0, ErrNotRejects
	}
	in := csv.NewReader(buffered)
	in.Comma, in.FieldsPerRecord = comma, -1
	if _, err := in.Read(); err != nil {
		return 0, 0, fmt.Errorf("its header is broken: %w", err)
	}
	for {
		end = in.InputOffset()
		record, err := in.Read()
		if err != nil {
			return comma, end, nil
		}
		if line, err := strconv.ParseInt(record[0], 10, 64); err != nil || line > lastLine {
			return comma, end, nil
		}
	}
}

func (r *rejects) add(row *RowError, raw []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.f == nil {
		f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, rejectedFileMode)
		if err != nil {
			return fmt.Errorf("cannot create the file of rejected rows: %w", err)
		}
		r.use(f, r.comma)
		r.mu.csv.Write(r.header) // the csv.Writer keeps the error for its Error method
	}
	fields := []string{string(raw)}
	parsed := csv.NewReader(bytes.NewReader(raw))
	parsed.Comma = r.comma
	if record, err := parsed.Read(); err == nil {
		fields = record
	}
	r.mu.unsynced = true
	r.mu.csv.Write(slices.Concat([]string{strconv.FormatInt(row.Line, 10), row.Reason}, fields))
	r.mu.csv.Flush()
	if err := r.mu.csv.Error(); err != nil {
		return fmt.Errorf("cannot write %s: %w", r.path, err)
	}
	return nil
}

// sync makes the rows added so far and the file's name durable. Other methods may run concurrently.
// If r is nil, sync does nothing.
func (r *rejects) sync() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncLocked()
}

func (r *rejects) syncLocked() error {
	if !r.mu.unsynced {
		return nil
	}
	if err := program.SyncFile(r.mu.f); err != nil {
		return fmt.Errorf("cannot sync %s: %w", r.path, err)
	}
	r.mu.unsynced = false
	return nil
}

// close syncs and closes the file; no row may be added later. It does nothing if r is nil.
func (r *rejects) close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.f == nil {
		return nil
	}
	return errors.Join(r.syncLocked(), r.mu.f.Close())
}
