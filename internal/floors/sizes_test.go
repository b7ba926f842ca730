package floors

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/countd/countd/internal/must"
)

// limits are what a newcomer can keep in mind: the lines of a package, the methods of a type, and
// the files that all depend on each other. Tests do not count. shard and api are near the limits. A
// package for each kind of data would make both smaller.
var limits = Limits{Lines: 7000, Methods: 100, Cycle: 12}

// warnPercent is the share of a limit from which TestSizes warns; go test -v shows it.
const warnPercent = 90

func TestSizes(t *testing.T) {
	sizes, err := Sizes("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sizes {
		for _, bound := range []struct {
			what    string
			is, max int
		}{
			{"lines", s.Lines, limits.Lines},
			{"methods on " + s.Type, s.Methods, limits.Methods},
			{"files that all depend on each other", s.Cycle, limits.Cycle},
		} {
			if bound.is > bound.max {
				t.Errorf("%s has %d %s, %d more than %d: move some into the package where they belong, or raise limits in internal/floors/sizes_test.go",
					s.Package, bound.is, bound.what, bound.is-bound.max, bound.max)
			} else if bound.is*100 >= bound.max*warnPercent {
				t.Logf("%s has %d %s, near the limit of %d", s.Package, bound.is, bound.what, bound.max)
			}
		}
	}
	if !slices.ContainsFunc(sizes, func(s Size) bool { return s.Package == "shard" && s.Type == "Node" && s.Cycle > 1 }) {
		t.Error("the tree was not read: shard has no Node")
	}
}

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
