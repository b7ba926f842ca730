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

// ErrNotRejects is returned if the file for rejects exists and is not a file of rejected rows.
var ErrNotRejects = errors.New("not a file of rejected rows; remove it, or name another with --rejects")

// The names of the first two columns in the file of rejects.
const (
	lineColumn   = "line"
	reasonColumn = "reason"
)

// rejects is the file of bad rows. For each bad row it has the line, the reason and the unchanged
// fields, so that an operator can correct the file and import it like the source file. A row that
// is not valid CSV is one quoted field. Each bad row is written before the watermark passes it, and
// synced before the position in the progress file passes it.
type rejects struct {
	path   string
	header []string
	comma  rune // delimiter of the source file, and of a new file of rejects

	mu struct {
		sync.Mutex
		f        *os.File // nil until the first bad row
		csv      *csv.Writer
		unsynced bool
	}
}

// openRejects opens an existing file. If there is none, the method add creates it with the first
// bad row. In an existing file, openRejects keeps the rows up to lastLine. It removes later rows,
// because this run will reject them again. If lastLine is 0, it removes the file.
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

// rejectedThrough returns the delimiter of a file of rejects, and the offset after the last row
// whose line is at most lastLine. After a crash, the file may have later rows, or only a part of
// the header.
func rejectedThrough(f io.Reader, lastLine int64) (comma rune, end int64, err error) {
	buffered := bufio.NewReader(f)
	start, _ := buffered.Peek(len(lineColumn) + utf8.UTFMax + len(reasonColumn)) // ignore the error: the next read returns it again
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
		r.mu.csv.Write(r.header) // ignore the error: Error returns it below
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

// sync makes the file and the rows added so far durable. It may be called concurrently with the
// other methods. If r is nil, sync does nothing.
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

// close syncs and closes the file. The caller must add no row afterwards. If r is nil, close does
// nothing.
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
