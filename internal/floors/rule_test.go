// Package floors owns two policies, and checks a source tree against them: which package may import
// which, and how large a package may be. It never builds or runs the code that it reads.
//
// Invariant: every package of the tree is in the rule, so that adding one is a decision, not
// an accident.
package floors

import (
	"cmp"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Module is the path of the module. Package names in the rule are relative to it.
const Module = "github.com/countd/countd"

// Edge is one import found in a tree.
type Edge struct {
	From string // importing package, relative to the module; "." is the module's root
	To   string // imported path; relative to the module if it is inside the module
	File string // slash-separated, relative to the tree's root
	Test bool   // File is a test
}

// inside reports whether the imported package is one of the module.
func (e Edge) inside() bool { return e.To == "." || !strings.Contains(firstElement(e.To), ".") }

// Read returns every import in the Go files under root, except imports of the standard library. It
// ignores build constraints, because files for other systems must also follow the rule.
func Read(root string) ([]Edge, error) {
	var edges []Edge
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (skipDir(d.Name()) || isModule(name)):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		found, err := fileEdges(filepath.ToSlash(rel), src)
		edges = append(edges, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read imports: %w", err)
	}
	return edges, nil
}

// isModule reports whether a directory is a separate module, such as a program that a benchmark
// compares. No package of the tree can import it.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func skipDir(name string) bool {
	return name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func fileEdges(file string, src []byte) ([]Edge, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	self := Edge{From: path.Dir(file), File: file, Test: strings.HasSuffix(file, "_test.go")}
	// Add an edge from the package to itself, so that a package without imports is checked too.
	edges := []Edge{{From: self.From, To: self.From, File: file, Test: self.Test}}
	for _, spec := range parsed.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if to == Module {
			self.To = "."
		} else if rel, ok := strings.CutPrefix(to, Module+"/"); ok {
			self.To = rel
		} else if strings.Contains(firstElement(to), ".") {
			self.To = to
		} else {
			continue // skip the standard library
		}
		edges = append(edges, self)
	}
	return edges, nil
}

func firstElement(importPath string) string {
	first, _, _ := strings.Cut(importPath, "/")
	return first
}

// Rule states what each package may import. A pattern that ends in /... matches a directory and all
// directories below it.
type Rule struct {
	allowed  map[string][]string // by package pattern: patterns of the packages that it may import
	confined map[string][]string // by module pattern: patterns of the only packages that may import it
	tests    []string            // patterns of packages that any test may import
	testsOf  map[string][]string // by package: patterns of further packages that its tests may import
}

var errSyntax = errors.New("not a line of the rule")

// ParseRule reads a rule. Each line is one of
//
//	PACKAGE: PACKAGE…            the first package may import the others
//	only PACKAGE…: MODULE…       only these packages may import these modules
//	tests: PACKAGE…              all tests may also import these packages
//	tests of PACKAGE: PACKAGE…   tests of the first package may also import the others
//
// A line that begins with two tabs continues the line above. Empty lines and lines that begin with #
// are ignored.
func ParseRule(text string) (*Rule, error) {
	r := &Rule{allowed: map[string][]string{}, confined: map[string][]string{}, testsOf: map[string][]string{}}
	for _, line := range strings.Split(strings.ReplaceAll(text, "\n\t\t", " "), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		left, right, ok := strings.Cut(line, ":")
		if !ok || left == "" {
			return nil, fmt.Errorf("%q: %w", line, errSyntax)
		}
		if owners, isOnly := strings.CutPrefix(left, "only "); isOnly {
			for _, module := range strings.Fields(right) {
				r.confined[module] = strings.Fields(owners)
			}
		} else if left == "tests" {
			r.tests = strings.Fields(right)
		} else if of, isOf := strings.CutPrefix(left, "tests of "); isOf {
			r.testsOf[of] = strings.Fields(right)
		} else {
			r.allowed[left] = append(strings.Fields(right), left)
		}
	}
	return r, nil
}

// Breaches returns a sentence for each edge that the rule does not allow, sorted by file.
func (r *Rule) Breaches(edges []Edge) []string {
	edges = slices.Clone(edges)
	slices.SortStableFunc(edges, func(a, b Edge) int { return cmp.Compare(a.File, b.File) })
	var out []string
	for _, e := range edges {
		if problem := r.problem(e); problem != "" {
			out = append(out, e.File+": "+problem)
		}
	}
	return slices.Compact(out)
}

func (r *Rule) problem(e Edge) string {
	if !e.inside() {
		for module, owners := range r.confined {
			if matches(module, e.To) && !matchesAny(owners, e.From) {
				return fmt.Sprintf("%s may not import %s", e.From, e.To)
			}
		}
		return ""
	}
	allowed, placed := r.placeOf(e.From)
	switch {
	case !placed:
		return fmt.Sprintf("%s is not in the rule", e.From)
	case e.From == e.To || matchesAny(allowed, e.To), e.Test && (matchesAny(r.tests, e.To) || matchesAny(r.testsOf[e.From], e.To)):
		return ""
	}
	return fmt.Sprintf("%s may not import %s", e.From, e.To)
}

// placeOf finds the longest pattern of r.allowed that matches pkg, and returns the packages that it
// allows. It returns false if no pattern matches.
func (r *Rule) placeOf(pkg string) ([]string, bool) {
	best, placed := "", false
	for pattern := range r.allowed {
		if matches(pattern, pkg) && len(pattern) > len(best) {
			best, placed = pattern, true
		}
	}
	return r.allowed[best], placed
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}

func matches(pattern, pkg string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == dir || strings.HasPrefix(pkg, dir+"/")
	}
	return pattern == pkg
}
