package bulk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// save syncs the rejects before it writes a progress file whose position is past them.
func TestRejectsAreSyncedBeforeTheProgress(t *testing.T) {
	dir := t.TempDir()
	in, err := NewCSVStream("f", strings.NewReader("id,like\nx,1\n"), ',')
	if err != nil {
		t.Fatal(err)
	}
	session := FileState{Kind: KindAdd, IDColumn: "id", Columns: []Column{{"like", "like"}}}.BeginSession(1, 0)
	add, err := NewReplay(FileConfig{InFlight: 1, Rejects: filepath.Join(dir, "add"), State: filepath.Join(dir, "add.state"), From: session}, in)
	if err != nil {
		t.Fatal(err)
	}
	set, err := NewFileImport(FileConfig{From: FileState{IDColumn: "id", Columns: []Column{{"like", "like"}}}, Rows: 1, InFlight: 1, Rejects: filepath.Join(dir, "set"), State: filepath.Join(dir, "set.state")}, in)
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]struct {
		rows *rowReader
		save func() error
	}{"values": {&set.rows, set.save}, "increments": {&add.rows, func() error { return add.save(false) }}} {
		if err := run.rows.openRejects(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := run.rows.rejects.add(&RowError{Line: 2, Reason: "why"}, []byte("x,1")); err != nil {
			t.Fatal(err)
		}
		if !run.rows.rejects.mu.unsynced {
			t.Errorf("%s: a row counts as synced that is not", name)
		}
		if err := run.save(); err != nil {
			t.Fatal(err)
		}
		if run.rows.rejects.mu.unsynced {
			t.Errorf("%s: the progress file passes a row that is not synced", name)
		}
	}
	// If the rejects cannot be synced, save does not change the progress file.
	if err := set.rows.rejects.add(&RowError{Line: 3, Reason: "why"}, []byte("x,1")); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(filepath.Join(dir, "set.state"))
	set.rows.rejects.mu.f.Close()
	if err := set.save(); err == nil {
		t.Error("rejects that cannot be synced are no error")
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "set.state")); string(after) != string(before) {
		t.Error("the progress passed rejects that were not synced")
	}
}

// A crash before the first sync may leave an incomplete file of rejects. If the progress file
// counts no rejected rows, the next run replaces the file of rejects.
func TestTornRejects(t *testing.T) {
	for _, torn := range []string{"", "li", "line,rea", "line,reason,id,li", "line,reason,id,like\n2,\"w"} {
		path := filepath.Join(t.TempDir(), "r")
		if err := os.WriteFile(path, []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := NewCSVStream("f", strings.NewReader("id,like\nx,1\n"), ',')
		if err != nil {
			t.Fatal(err)
		}
		r := &rowReader{in: in, from: Position{Line: 9, Rows: 8}, passed: func(int64) {}}
		if err := r.openRejects(path); err != nil {
			t.Errorf("%q: %v", torn, err)
			continue
		}
		if err := r.rejects.add(&RowError{Line: 12, Reason: "why"}, []byte("x,1")); err != nil {
			t.Fatal(err)
		}
		if text, _ := os.ReadFile(path); string(text) != "line,reason,id,like\n12,why,x,1\n" {
			t.Errorf("after %q: %q", torn, text)
		}
	}
}
