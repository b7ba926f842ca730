package floors

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/countd/countd/internal/must"
)

// limits bound what a newcomer must keep in mind: the lines of a package, the methods of a type,
// and the number of files that all depend on each other. Tests do not count.
var limits = Limits{Lines: 5000, Methods: 60, Cycle: 8}

// larger contains the bounds of packages that still exceed limits. Never raise one.
var larger = map[string]Limits{
	"api":    {Lines: 5295},
	"engine": {Lines: 5165},
}

// linesMin is the size below which a package should be merged into its callers.
const linesMin = 100

// smaller contains the packages below linesMin, and why they exist.
var smaller = map[string]string{
	"cmd/countctl": "a program",
	"docs":         "go:embed reads only below the package",
}

// packagesMax bounds the number of packages of the module. Never raise it.
const packagesMax = 70

// warnPercent is the share of a limit from which TestSizes warns; go test -v shows it.
const warnPercent = 90

func TestSizes(t *testing.T) {
	sizes, err := Sizes("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sizes {
		if _, why := smaller[s.Package]; s.Lines < linesMin != why {
			t.Errorf("%s has %d lines: a package below %d goes back into its callers, unless smaller in internal/floors/sizes_test.go says why not", s.Package, s.Lines, linesMin)
		}
		for _, at := range s.Positional {
			t.Errorf("%s: a struct literal of more than %d values names its fields", at, positionalMax)
		}
		limits := limits
		if l, ok := larger[s.Package]; ok {
			limits = Limits{max(limits.Lines, l.Lines), max(limits.Methods, l.Methods), max(limits.Cycle, l.Cycle)}
		}
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
	edges, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	for _, e := range edges {
		packages[e.From] = true
	}
	if len(packages) > packagesMax {
		t.Errorf("the module has %d packages, more than %d: put code into a package that is there", len(packages), packagesMax)
	}
	if !slices.ContainsFunc(sizes, func(s Size) bool { return s.Package == "shard" && s.Type == "Node" && s.Cycle > 1 }) {
		t.Error("the tree was not read: shard has no Node")
	}
}

func TestPositionalLiteralsAreFound(t *testing.T) {
	for text, found := range map[string]bool{
		`type s struct{ a, b, c, d int }; var v = s{1, 2, 3, 4}`:             true,
		`type s struct{ a, b, c, d int }; var v = []*s{{1, 2, 3, 4}}`:        true,
		`type s struct{ a, b, c, d int }; var v = s{a: 1, b: 2, c: 3, d: 4}`: false,
		`type s struct{ a, b, c int }; var v = s{1, 2, 3}`:                   false,
		`var v = []int{1, 2, 3, 4}`:                                          false,
	} {
		root := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(root, "a.go"), []byte("package x\n"+text+"\n"), 0o600))
		sizes, err := Sizes(root)
		if err != nil || len(sizes) != 1 || (len(sizes[0].Positional) == 1) != found {
			t.Errorf("%s: got %+v, %v", text, sizes, err)
		}
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
