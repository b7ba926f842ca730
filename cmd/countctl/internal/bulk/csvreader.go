package bulk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
)

const (
	// recordBytesMax bounds a record. Without it, a quote that is never closed would load the rest
	// of the file into memory.
	recordBytesMax = 1 << 20
	readBufferSize = 64 << 10
)

// ErrRecordTooLong is returned for a record that is longer than 1 MiB. The usual cause is a quote
// that is never closed.
var ErrRecordTooLong = errors.New("record longer than 1 MiB (is a quote left open?)")

// RowError describes a fault in a row of a file. Next returns it for a record that is not valid
// CSV, or that has not as many fields as the header. The caller may read on after this error.
type RowError struct {
	Name   string // name of the file
	Line   int64
	Reason string
}

func (e *RowError) Error() string { return fmt.Sprintf("%s:%d: %s", e.Name, e.Line, e.Reason) }

// Bad returns a RowError for the record last returned or, before the first one, for the
// header.
func (r *CSVReader) Bad(format string, args ...any) error {
	return &RowError{r.name, r.line, fmt.Sprintf(format, args...)}
}

// errBadDelimiter is returned by ParseDelimiter.
var errBadDelimiter = errors.New("a delimiter is one character, or tab: no letter, digit, quote, dot, sign or line end")

// ParseDelimiter parses a delimiter. It refuses a character that may be part of a number, of a
// name, or of the CSV syntax itself.
func ParseDelimiter(text string) (rune, error) {
	if text == "tab" || text == `\t` {
		text = "\t"
	}
	r, size := utf8.DecodeRuneInString(text)
	if size == 0 || size != len(text) || r == utf8.RuneError || unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("\"\r\n\x00.+-_", r) {
		return 0, fmt.Errorf("%q: %w", text, errBadDelimiter)
	}
	return r, nil
}

// CSVReader reads a CSV file with a header. Its methods except BytesRead must not be called
// concurrently.
type CSVReader struct {
	name    string
	size    int64       // size of the file as stored, before gunzip; -1 if unknown
	comma   rune        // character between fields
	file    *os.File    // set by OpenWholeCSV; otherwise nil
	opened  os.FileInfo // state of file when it was opened
	closers []io.Closer
	counted *countingReader
	recent  *recentBytes
	csv     *csv.Reader
	header  []string
	line    int64 // the current record's first line
	start   int64 // offset of the current record
}

// OpenCSV opens a file, which may be a pipe, and reads its header. It detects gzip by the first
// bytes, whatever the name. If ctx ends, opening and reading of a pipe end too.
func OpenCSV(ctx context.Context, path string) (*CSVReader, error) {
	f, err := openRegular(path)
	if errors.Is(err, ErrNotRegular) {
		if f, err = openSilent(ctx, path); err != nil {
			return nil, err
		}
		return newReader(&CSVReader{name: path, size: -1, comma: ',', closers: []io.Closer{f}}, Interruptible(ctx, f))
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return newReader(&CSVReader{name: path, size: info.Size(), comma: ',', closers: []io.Closer{f}}, f)
}

// OpenWholeCSV opens a regular file and reads it to its end to compute its Identity. Then it reads
// the header. So it refuses a truncated gzip file before the caller uses any row. The caller checks
// with Unchanged that the rows still match the identity.
func OpenWholeCSV(ctx context.Context, path string, comma rune) (*CSVReader, Identity, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, Identity{}, err
	}
	info, err := f.Stat()
	var identity Identity
	if err == nil {
		identity, err = identify(ctx, f)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, Identity{}, err
	}
	r, err := newReader(&CSVReader{name: path, size: identity.Size, comma: comma, file: f, opened: info, closers: []io.Closer{f}}, f)
	return r, identity, err
}

// Unchanged returns ErrChanged if the file was written to after OpenWholeCSV opened it. It compares
// the file's size and time.
func (r *CSVReader) Unchanged() error {
	if r.file == nil {
		return nil
	}
	info, err := r.file.Stat()
	if err != nil {
		return fmt.Errorf("cannot check %s: %w", r.name, err)
	}
	if info.Size() != r.opened.Size() || !info.ModTime().Equal(r.opened.ModTime()) {
		return fmt.Errorf("%s: %w", r.name, ErrChanged)
	}
	return nil
}

// NewCSVStream returns a reader of a stream, such as standard input. name is for messages.
func NewCSVStream(name string, r io.Reader, comma rune) (*CSVReader, error) {
	return newReader(&CSVReader{name: name, size: -1, comma: comma}, r)
}

func newReader(r *CSVReader, in io.Reader) (*CSVReader, error) {
	r.counted = &countingReader{r: in}
	if err := r.open(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *CSVReader) open() error {
	plain := bufio.NewReaderSize(r.counted, readBufferSize)
	if isGzip(plain) {
		unzipped, err := gzip.NewReader(plain)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", r.name, err)
		}
		r.closers = append(r.closers, unzipped)
		plain = bufio.NewReaderSize(unzipped, readBufferSize)
	}
	if err := r.skipMark(plain); err != nil {
		return err
	}
	r.recent = &recentBytes{r: plain}
	r.csv = csv.NewReader(bufio.NewReaderSize(r.recent, readBufferSize))
	r.csv.Comma = r.comma
	r.csv.ReuseRecord = true
	r.csv.FieldsPerRecord = -1 // Next counts the fields instead, because it can continue after a bad record
	record, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s:1: the file is empty; it needs a header", r.name)
	}
	if err != nil {
		return fmt.Errorf("cannot read the header of %s: %w", r.name, err)
	}
	r.line = 1
	r.header = slices.Clone(record)
	return nil
}

// skipMark skips the byte order mark of UTF-8, which spreadsheets write. It refuses the byte order
// mark of UTF-16.
func (r *CSVReader) skipMark(plain *bufio.Reader) error {
	start, _ := plain.Peek(3) // ignore the error: the next read returns it again
	switch {
	case bytes.Equal(start, []byte("\ufeff")):
		_, err := plain.Discard(len(start))
		return err
	case bytes.HasPrefix(start, []byte{0xff, 0xfe}), bytes.HasPrefix(start, []byte{0xfe, 0xff}):
		return fmt.Errorf("%s:1: the file is in UTF-16; convert it to UTF-8", r.name)
	}
	return nil
}

// Delimiter returns the character between fields.
func (r *CSVReader) Delimiter() rune { return r.comma }

// Name returns the file's name for messages.
func (r *CSVReader) Name() string { return r.name }

// Header returns the names of the columns. The reader owns them.
func (r *CSVReader) Header() []string { return r.header }

// Size returns the size of the file as stored, in bytes, or -1 if it is unknown.
func (r *CSVReader) Size() int64 { return r.size }

// BytesRead returns how many bytes of the stored file have been read. It is safe for concurrent
// use.
func (r *CSVReader) BytesRead() int64 { return r.counted.n.Load() }

// Line returns the first line of the record that Next last returned or refused. The header
// is on line 1.
func (r *CSVReader) Line() int64 { return r.line }

// Next returns the next record; its fields are valid until the next call. It returns io.EOF after
// the last record, and a *RowError for a bad record that the caller may skip. After any other
// error, Next cannot continue.
func (r *CSVReader) Next() ([]string, error) {
	r.start = r.csv.InputOffset()
	r.recent.discard(r.start)
	record, err := r.csv.Read()
	var parse *csv.ParseError
	switch {
	case errors.As(err, &parse):
		r.line = int64(parse.StartLine)
		if parse.StartLine != parse.Line {
			// The bad field spans several lines. Where it should end is unknown, and it may contain
			// good rows, so it cannot be skipped.
			return nil, fmt.Errorf("%s:%d: a quote opened here breaks at line %d", r.name, r.line, parse.Line)
		}
		return nil, r.Bad("%v", parse.Err)
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		return nil, fmt.Errorf("cannot read %s after line %d: %w", r.name, r.line, err)
	}
	line, _ := r.csv.FieldPos(0)
	r.line = int64(line)
	if len(record) != len(r.header) {
		return nil, r.Bad("has %d fields, the header has %d", len(record), len(r.header))
	}
	return record, nil
}

// Raw returns the bytes of the record last returned or refused, without its
// line end. They are valid until the next call of Next.
func (r *CSVReader) Raw() []byte {
	return bytes.Trim(r.recent.since(r.start, r.csv.InputOffset()), "\r\n")
}

// Close closes the file.
func (r *CSVReader) Close() error {
	var err error
	for _, c := range slices.Backward(r.closers) {
		err = errors.Join(err, c.Close())
	}
	return err
}

type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// recentBytes reads from a stream. It keeps a copy of all bytes since the start of the current
// record, so that Raw can return the record unchanged.
type recentBytes struct {
	r     io.Reader
	kept  []byte
	first int64 // offset in the stream of kept[0]
	used  int   // number of bytes at the start of kept that the next Read drops
}

func (b *recentBytes) Read(p []byte) (int, error) {
	b.kept = append(b.kept[:0], b.kept[b.used:]...)
	b.first += int64(b.used)
	b.used = 0
	if len(b.kept) > recordBytesMax {
		return 0, ErrRecordTooLong
	}
	n, err := b.r.Read(p)
	b.kept = append(b.kept, p[:n]...)
	return n, err
}

// discard marks the bytes before an offset of the stream as no longer needed.
func (b *recentBytes) discard(offset int64) { b.used = int(offset - b.first) }

func (b *recentBytes) since(from, to int64) []byte { return b.kept[from-b.first : to-b.first] }

// openSilent opens a file that may be a pipe without a writer. If ctx ends while os.Open blocks,
// openSilent returns, but its goroutine may stay in os.Open until the process ends.
func openSilent(ctx context.Context, path string) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		f, err := os.Open(path)
		done <- result{f, err}
	}()
	select {
	case opened := <-done:
		return opened.f, opened.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Interruptible returns a reader whose Read returns ctx's error once ctx ends, even while r is
// silent. After ctx has ended during a Read, the caller must not use r: a goroutine may still block
// in r.Read, in the worst case until the process ends.
func Interruptible(ctx context.Context, r io.Reader) io.Reader {
	return &interruptible{ctx: ctx, r: r, done: make(chan readResult, 1)}
}

type interruptible struct {
	ctx  context.Context
	r    io.Reader
	buf  []byte // while Read runs, only its goroutine uses buf
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	if len(i.buf) < len(p) {
		i.buf = make([]byte, len(p))
	}
	buf := i.buf[:len(p)]
	go func() {
		n, err := i.r.Read(buf)
		i.done <- readResult{n, err}
	}()
	select {
	case result := <-i.done:
		return copy(p, buf[:result.n]), result.err
	case <-i.ctx.Done():
		return 0, i.ctx.Err()
	}
}
