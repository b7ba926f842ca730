package progressfile_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/progressfile"
)

type run struct{ Line int }

func decodeRun(text []byte) (r run, err error) {
	err = json.Unmarshal(text, &r)
	return r, err
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.progress")
	if _, found, err := progressfile.Read(path, decodeRun); found || err != nil {
		t.Fatalf("a file that is not there: found %t, %v", found, err)
	}
	for line := range 2 {
		if err := progressfile.Write(path, run{Line: line}); err != nil {
			t.Fatal(err)
		}
		got, found, err := progressfile.Read(path, decodeRun)
		if !found || err != nil || got.Line != line {
			t.Fatalf("line %d: read %+v, found %t, %v", line, got, found, err)
		}
	}
}

func TestWhatCannotBeReadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.progress")
	// Valid but larger than what is read: cut off, it does not parse.
	if err := os.WriteFile(path, []byte(`{"Line":1`+strings.Repeat(" ", 1<<20)+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad *json.SyntaxError
	_, found, err := progressfile.Read(path, decodeRun)
	if found || !errors.As(err, &bad) || !strings.Contains(err.Error(), path) {
		t.Fatalf("found %t, %v", found, err)
	}
}
