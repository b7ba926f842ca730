package floors

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/countd/countd/internal/must"
)

// limits are what a newcomer holds in the head: the lines of a package, the methods of a
// type, and the files that all depend on each other. Tests do not count.
var limits = Limits{Lines: 7000, Methods: 100, Cycle: 12}

// exceptions are the packages above the limits, with the most that each may have. A number
// goes down with its package; no package may be added.
var exceptions = map[string]Limits{
	"api": {Lines: 7500},
}

// slack is how many lines a package may be below its exception before that has to go down.
const slack = 200

func TestSizes(t *testing.T) {
	sizes, err := Sizes("../..")
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{}
	for _, s := range sizes {
		read[s.Package] = true
		most := exceptions[s.Package]
		bound := Limits{max(most.Lines, limits.Lines), max(most.Methods, limits.Methods), max(most.Cycle, limits.Cycle)}
		switch {
		case s.Lines > bound.Lines || s.Methods > bound.Methods || s.Cycle > bound.Cycle:
			t.Errorf("%s has %d lines, %d methods on %s and %d files in a cycle; at most %+v",
				s.Package, s.Lines, s.Methods, s.Type, s.Cycle, bound)
		case bound.Lines > max(s.Lines+slack, limits.Lines) || bound.Methods > max(s.Methods, limits.Methods) || bound.Cycle > max(s.Cycle, limits.Cycle):
			t.Errorf("%+v is below its exception %+v: lower that, or delete it", s, most)
		}
	}
	for name := range exceptions {
		if !read[name] {
			t.Errorf("no package %s", name)
		}
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
