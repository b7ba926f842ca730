package floors

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/countd/countd/internal/must"
)

// limits are what a newcomer holds in the head: the lines of a package, the methods of a
// type, and the files that all depend on each other. Tests do not count. shard and api are near
// them; a room for each kind of data makes both smaller.
var limits = Limits{Lines: 7400, Methods: 100, Cycle: 12}

func TestSizes(t *testing.T) {
	sizes, err := Sizes("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sizes {
		if s.Lines > limits.Lines || s.Methods > limits.Methods || s.Cycle > limits.Cycle {
			t.Errorf("%s has %d lines, %d methods on %s and %d files in a cycle; at most %+v",
				s.Package, s.Lines, s.Methods, s.Type, s.Cycle, limits)
		}
	}
	if !slices.ContainsFunc(sizes, func(s Size) bool { return s.Package == "shard" && s.Type == "Node" && s.Cycle > 1 }) {
		t.Error("the tree was not read: shard has no Node")
	}
}

// TestCycleIsFound holds the count of files to what it promises.
func TestCycleIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		files []string
		want  int
	}{
		"no cycle":          {[]string{`func a() { b() }`, `func b() {}`}, 1},
		"functions":         {[]string{`func a() { b() }`, `func b() { a() }`}, 2},
		"fields":            {[]string{`type t struct{ x int }; func a() { b() }`, `func b() { _ = t{}.x }`}, 2},
		"methods":           {[]string{`type t struct{}; func a(v t) { v.b() }`, `func (t) b() { a(t{}) }`}, 2},
		"an atomic pointer": {[]string{`import "sync/atomic"; type t struct{ p atomic.Pointer[t] }; func a(v *t) { v.p.Load().b() }`, `func (*t) b() { a(nil) }`}, 2},
		"two cycles":        {[]string{`func a() { b() }`, `func b() { a(); c() }`, `func c() { d() }`, `func d() { c() }`}, 2},
		"a local name":      {[]string{`func a() { b() }`, `func b() { a := 1; _ = a }`}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for i, text := range test.files {
				must.Do(t, os.WriteFile(filepath.Join(root, string(rune('a'+i))+".go"), []byte("package x\n"+text+"\n"), 0o600))
			}
			sizes, err := Sizes(root)
			if err != nil || len(sizes) != 1 || sizes[0].Cycle != test.want {
				t.Errorf("got %+v, %v; want a cycle of %d", sizes, err, test.want)
			}
		})
	}
}
