package bulk

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/program"
)

const writeBufferSize = 256 << 10

// CSVWriter writes a CSV file of ids, texts and integers. The file appears under its name only when Commit
// has written it completely. Its methods must not be called concurrently.
type CSVWriter struct {
	name     string
	file     *program.AtomicFile // nil for a stream
	gzip     *gzip.Writer        // nil if the file is not compressed
	buffered *bufio.Writer
	line     []byte
}

// CreateCSV returns a writer for a file. It compresses the file with gzip if the name ends in .gz.
// The caller must call Commit or Abort.
func CreateCSV(path string) (*CSVWriter, error) {
	f, err := program.CreateFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot create %s: %w", path, err)
	}
	w := &CSVWriter{name: path, file: f}
	out := io.Writer(f)
	if strings.HasSuffix(path, ".gz") {
		w.gzip = gzip.NewWriter(f)
		out = w.gzip
	}
	w.buffered = bufio.NewWriterSize(out, writeBufferSize)
	return w, nil
}

// NewCSVWriter returns a writer to a stream, such as standard output. name is for messages.
func NewCSVWriter(name string, out io.Writer) *CSVWriter {
	return &CSVWriter{name: name, buffered: bufio.NewWriterSize(out, writeBufferSize)}
}

// Row writes an id and its values.
func (w *CSVWriter) Row(id client.ID, values []int64) error {
	w.line = appendField(w.line[:0], id.String())
	for _, v := range values {
		w.line = append(w.line, ',')
		w.line = strconv.AppendInt(w.line, v, 10)
	}
	return w.flushLine()
}

// Texts writes a line of texts.
func (w *CSVWriter) Texts(texts ...string) error {
	w.line = w.line[:0]
	for i, text := range texts {
		if i > 0 {
			w.line = append(w.line, ',')
		}
		w.line = appendField(w.line, text)
	}
	return w.flushLine()
}

// appendField appends a text, in quotes if CSV needs them.
func appendField(dst []byte, text string) []byte {
	if text != "" && !strings.ContainsAny(text, "\",\r\n") && text[0] != ' ' && text[0] != '\t' {
		return append(dst, text...)
	}
	dst = append(dst, '"')
	dst = append(dst, strings.ReplaceAll(text, `"`, `""`)...)
	return append(dst, '"')
}

func (w *CSVWriter) flushLine() error {
	w.line = append(w.line, '\n')
	_, err := w.buffered.Write(w.line)
	return w.wrap(err)
}

// Commit completes the file and renames it to its target. For a stream it flushes the
// buffers.
func (w *CSVWriter) Commit() error {
	err := w.buffered.Flush()
	if err == nil && w.gzip != nil {
		err = w.gzip.Close()
	}
	if w.file == nil {
		return w.wrap(err)
	}
	if err != nil {
		w.file.Abort()
		return w.wrap(err)
	}
	return w.wrap(w.file.Commit())
}

// Abort removes the incomplete file and leaves an earlier file unchanged. It does nothing
// after Commit.
func (w *CSVWriter) Abort() {
	if w.file != nil {
		w.file.Abort()
	}
}

func (w *CSVWriter) wrap(err error) error {
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", w.name, err)
	}
	return nil
}
