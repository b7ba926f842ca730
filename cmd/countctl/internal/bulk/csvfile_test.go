package bulk_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
)

// read returns a text for each result of Next: the line and fields of the record, or the error.
func read(t *testing.T, text string) []string {
	t.Helper()
	r, err := bulk.NewCSVStream("f", strings.NewReader(text), ',')
	if err != nil {
		return []string{err.Error()}
	}
	defer r.Close()
	var got []string
	for {
		record, err := r.Next()
		var bad *bulk.RowError
		switch {
		case errors.Is(err, io.EOF):
			return got
		case errors.As(err, &bad):
			got = append(got, bad.Error()+" ← "+string(r.Raw()))
		case err != nil:
			return append(got, err.Error())
		default:
			line := strings.Join(append([]string{itoa(r.Line())}, record...), "|")
			if raw, err := csv.NewReader(bytes.NewReader(r.Raw())).Read(); err != nil || !slices.Equal(raw, record) {
				t.Fatalf("line %d: the raw bytes are %q", r.Line(), r.Raw())
			}
			got = append(got, line)
		}
	}
}

func itoa(n int64) string {
	var digits []byte
	for ; n > 0; n /= 10 {
		digits = append([]byte{byte('0' + n%10)}, digits...)
	}
	return string(digits)
}

func TestReader(t *testing.T) {
	cases := []struct {
		name, text string
		want       []string
	}{
		{"plain", "a,b\n1,2\n3,4\n", []string{"2|1|2", "3|3|4"}},
		{"no last line end", "a,b\n1,2", []string{"2|1|2"}},
		{"empty lines", "a,b\n\n1,2\n\r\n3,4\n\n", []string{"3|1|2", "5|3|4"}},
		{"quotes over lines", "a,b\n\"x\ny\",2\n3,4\n", []string{"2|x\ny|2", "4|3|4"}},
		{"bad record", "a,b\n1,2\"\n3,4\n", []string{`f:2: bare " in non-quoted-field ← 1,2"`, "3|3|4"}},
		{"other number of fields", "a,b\n1\n1,2,3\n3,4\n", []string{
			"f:2: has 1 fields, the header has 2 ← 1", "f:3: has 3 fields, the header has 2 ← 1,2,3", "4|3|4"}},
		{"open quote", "a,b\n1,2\n\"3,4\n5,6\n", []string{"2|1|2", "f:3: a quote opened here breaks at line 4"}},
		{"header only", "a,b\n", nil},
		{"nothing", "", []string{"f:1: the file is empty; it needs a header"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := read(t, c.text); !slices.Equal(got, c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
		})
	}
}

// If the first record is too long, the error names the line before it: the header.
func TestReaderOfALongRecord(t *testing.T) {
	r, err := bulk.NewCSVStream("f", strings.NewReader("id,like\n\""+strings.Repeat("x", 2<<20)), ',')
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(); !errors.Is(err, bulk.ErrRecordTooLong) || !strings.Contains(err.Error(), "after line 1:") {
		t.Fatalf("told %v", err)
	}
}

func TestReaderOfALongFile(t *testing.T) {
	const rows = 50_000 // more text than fits into one buffer
	text := "a,b\n" + strings.Repeat("12345678,1\n", rows)
	got := read(t, text)
	if len(got) != rows || got[rows-1] != itoa(rows+1)+"|12345678|1" {
		t.Fatalf("%d rows, the last is %q", len(got), got[len(got)-1])
	}
}

func TestWriterAndReader(t *testing.T) {
	for _, name := range []string{"a.csv", "a.csv.gz"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			w, err := bulk.CreateCSV(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{w.Texts("id", "like"), w.Row(client.Number(math.MaxUint64), []int64{-1 << 63}), w.Row(client.Number(0), []int64{0})} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("the file is there before Commit: %v", err)
			}
			if err := w.Commit(); err != nil {
				t.Fatal(err)
			}
			w.Abort() // does nothing after Commit
			r, err := bulk.OpenCSV(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			record, err := r.Next()
			if err != nil || !slices.Equal(record, []string{"18446744073709551615", "-9223372036854775808"}) {
				t.Fatalf("got %q, %v", record, err)
			}
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Next(); !errors.Is(err, io.EOF) {
				t.Fatalf("got %v, want the end", err)
			}
			if r.BytesRead() != r.Size() {
				t.Fatalf("%d of %d bytes are read", r.BytesRead(), r.Size())
			}
		})
	}
}

func TestAbortLeavesWhatWasThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		name string
		do   func(*bulk.CSVWriter) error
		want string
	}{
		{"abort", func(w *bulk.CSVWriter) error { w.Abort(); return nil }, "old"},
		{"commit", (*bulk.CSVWriter).Commit, "id\n"},
	} {
		t.Run(end.name, func(t *testing.T) {
			w, err := bulk.CreateCSV(path)
			if err == nil {
				err = w.Texts("id")
			}
			if err == nil {
				err = end.do(w)
			}
			text, _ := os.ReadFile(path)
			info, _ := os.Stat(path)
			entries, _ := os.ReadDir(filepath.Dir(path))
			if err != nil || string(text) != end.want || info.Mode().Perm() != 0o640 || len(entries) != 1 {
				t.Fatalf("%v, %q, %v, %v", err, text, info.Mode(), entries)
			}
		})
	}
}

func TestWriterThroughALink(t *testing.T) {
	dir := t.TempDir()
	link, target := filepath.Join(dir, "link.csv"), filepath.Join(dir, "target.csv")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	w, err := bulk.CreateCSV(link)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Texts("id"), w.Commit()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(target); err != nil || string(text) != "id\n" {
		t.Fatalf("the target holds %q, %v", text, err)
	}
}

func TestIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	write := func(text string, at time.Time) bulk.Identity {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		identity, err := bulk.Identify(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return identity
	}
	long := strings.Repeat("x", 3<<20)
	first := write(long+"a"+long, time.Unix(1, 0))
	if first != write(long+"a"+long, time.Unix(2, 0)) {
		t.Fatal("a file that was only touched is another one")
	}
	for name, text := range map[string]string{
		"size": long + "a" + long + "b", "head": "y" + long[1:] + "a" + long, "middle": long + "b" + long, "tail": long + "a" + long[1:] + "y",
	} {
		if first == write(text, time.Unix(1, 0)) {
			t.Errorf("a file of another %s is the same", name)
		}
	}
	if _, err := bulk.Identify(t.Context(), t.TempDir()); err == nil {
		t.Error("a directory has an identity")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := bulk.Identify(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

func FuzzReader(f *testing.F) {
	for _, seed := range []string{"a,b\n1,2\n", "a\n\"x\ny\"\n", "a,b\n\"1\"x,2\n3,4\n", "\x1f\x8b\x08\x00", "a\r\n\r\n1\r\n", "a\n\"\"\"\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := bulk.NewCSVStream("f", strings.NewReader(text), ',')
		if err != nil {
			return
		}
		last := int64(1)
		for {
			_, err := r.Next()
			var bad *bulk.RowError
			if err != nil && !errors.As(err, &bad) {
				return
			}
			if r.Line() <= last {
				t.Fatalf("line %d comes after line %d", r.Line(), last)
			}
			last = r.Line()
			r.Raw()
		}
	})
}

// Opening a pipe and reading from it both end with the context.
func TestPipeUntilTheContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := bulk.OpenCSV(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("without a writer: %v", err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0) // O_RDWR, because O_WRONLY would wait for a reader
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.WriteString("id,like\n1,2\n3,"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	r, err := bulk.OpenCSV(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if record, err := r.Next(); err != nil || !slices.Equal(record, []string{"1", "2"}) {
		t.Fatalf("%q, %v", record, err)
	}
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := r.Next(); !errors.Is(err, context.Canceled) {
		t.Fatalf("a silent writer: %v", err)
	}
}

func TestUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.csv")
	if err := os.WriteFile(path, []byte("id,like\n1,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, identity, err := bulk.OpenWholeCSV(t.Context(), path, ',')
	if err != nil || identity.Size != 12 || r.Size() != 12 {
		t.Fatalf("%+v, %v", identity, err)
	}
	defer r.Close()
	if err := r.Unchanged(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("3,4\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := r.Unchanged(); !errors.Is(err, bulk.ErrChanged) {
		t.Errorf("a longer file: %v", err)
	}
}
