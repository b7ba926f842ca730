package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const (
	architecture = "../../docs/ARCHITECTURE.md"
	// architectureWordsMax is the number of words that a newcomer reads in a quarter of an hour.
	architectureWordsMax = 3000
	// behavioursMin is the smallest number of rows that the table of behaviours may have.
	behavioursMin = 30
	// explainLines is the number of lines above which a package needs more than a short package
	// comment.
	explainLines = 800
	// commentWordsMin is the least number of words in a package comment that replaces a DESIGN.md.
	commentWordsMin = 60
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documentWordsMax bounds documents that a person reads from the beginning to the end.
var documentWordsMax = map[string]int{"docs/ARCHITECTURE.md": architectureWordsMax, "docs/OPERATING.md": 6000}

// documentBytesMax bounds documents that otherwise grow by text that nobody reads. Instead, put
// examples of errors into api/testdata/contract.yaml, and leave former measurements to git.
var documentBytesMax = map[string]int{"docs/openapi.yaml": 173_000, "docs/BENCHMARKS.md": 24_500}

func TestDocumentsAreShort(t *testing.T) {
	for name, most := range documentWordsMax {
		if n := len(strings.Fields(named.ReplaceAllString(read(t, "../../"+name), ""))); n > most {
			t.Errorf("%s has %d words, %d more than %d: move arguments into a DESIGN.md beside the package that owns them",
				name, n, n-most, most)
		}
	}
	for name, most := range documentBytesMax {
		if n := len(read(t, "../../"+name)); n > most {
			t.Errorf("%s has %d bytes, %d more than %d", name, n, n-most, most)
		}
	}
}

// TestBehavioursExist checks the table "behaviour → function" of docs/ARCHITECTURE.md: each
// file that it names exists, and declares the functions.
func TestBehavioursExist(t *testing.T) {
	_, table, found := strings.Cut(read(t, architecture), "\n| behaviour | function |\n|---|---|\n")
	if !found {
		t.Fatal("docs/ARCHITECTURE.md has no table of behaviours")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	if len(rows) < behavioursMin {
		t.Errorf("docs/ARCHITECTURE.md: %d behaviours, fewer than %d", len(rows), behavioursMin)
	}
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 2 {
			t.Errorf("docs/ARCHITECTURE.md: %q: not two cells", row)
			continue
		}
		for _, place := range strings.Split(cells[1], "; ") {
			if problem := placeProblem("../..", place); problem != "" {
				t.Errorf("docs/ARCHITECTURE.md: %q: %s", cells[0], problem)
			}
		}
	}
}

// placeProblem returns what is wrong with a place of the form "file.go: Function, Type.Method", or
// "" if the file declares all these functions.
func placeProblem(root, place string) string {
	file, names, ok := strings.Cut(place, ": ")
	if !ok || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
		return place + " is not of the form pkg/file.go: Function"
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		return err.Error()
	}
	var declared []string
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			declared = append(declared, nameOf(f))
		}
	}
	for _, name := range strings.Split(names, ", ") {
		if !slices.Contains(declared, name) {
			return file + " does not declare " + name
		}
	}
	return ""
}

// nameOf returns Function for a function and Type.Method for a method.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

func TestPlaceProblem(t *testing.T) {
	for _, test := range []struct {
		place string
		holds bool
	}{
		{"scarce/wait.go: opened", true},
		{"scarce/wait.go: Wait.Over, opened", true},
		{"scarce/wait.go: Over", false}, // a method is found only by Type.Method
		{"scarce/wait.go: opened, opens", false},
		{"scarce/waits.go: opened", false},
		{"scarce/wait_test.go: TestWait", false},
		{"opened", false},
	} {
		if problem := placeProblem("..", test.place); (problem == "") != test.holds {
			t.Errorf("%q: %q", test.place, problem)
		}
	}
}

// TestLargePackagesAreExplained checks that each large package has a DESIGN.md, or a package
// comment that states what the package owns, what it never does, and its invariant.
func TestLargePackagesAreExplained(t *testing.T) {
	large := 0
	err := filepath.WalkDir("../..", func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case dir != "../.." && (skipDir(d.Name()) || isModule(dir)):
			return fs.SkipDir
		}
		_, lines, err := productFiles(token.NewFileSet(), dir)
		if err != nil || lines <= explainLines {
			return err
		}
		large++
		if _, err := os.Stat(filepath.Join(dir, "DESIGN.md")); err == nil {
			return nil
		}
		comment, err := packageComment(dir)
		if lacks := lacksOf(comment); lacks != "" {
			t.Errorf("%s has %d lines, more than %d, and no DESIGN.md: its package comment %s", strings.TrimPrefix(dir, "../../"), lines, explainLines, lacks)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if large < 10 {
		t.Errorf("the tree was not read: %d large packages", large)
	}
}

func packageComment(dir string) (comment string, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return "", err
		}
		comment += file.Doc.Text()
	}
	return comment, err
}

var (
	ownsWord  = regexp.MustCompile(`\bowns?\b`)
	neverWord = regexp.MustCompile(`\b(never|knows no|knows nothing|knows neither)\b`)
)

// lacksOf returns what is missing in the package comment of a large package, or "".
func lacksOf(comment string) string {
	switch {
	case len(strings.Fields(comment)) < commentWordsMin:
		return "has fewer than 60 words"
	case !ownsWord.MatchString(comment):
		return "does not say what the package owns"
	case !neverWord.MatchString(comment):
		return "does not say what the package never does"
	case !strings.Contains(comment, "Invariant"):
		return "names no Invariant"
	}
	return ""
}

func TestLacksOf(t *testing.T) {
	long := strings.Repeat("word ", commentWordsMin)
	for comment, whole := range map[string]bool{
		long + "It owns x. It never does y. Invariant: z.": true,
		"It owns x. It never does y. Invariant: z.":        false,
		long + "It never does y. Invariant: z.":            false,
		long + "It owns x. Invariant: z.":                  false,
		long + "It owns x. It never does y.":               false,
	} {
		if got := lacksOf(comment); (got == "") != whole {
			t.Errorf("%q: %q", comment[max(0, len(comment)-45):], got)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
)

// TestLinks checks that the target of every relative link in every document exists: the file and,
// if the link names one, the heading.
func TestLinks(t *testing.T) {
	links := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "../.." && (skipDir(d.Name()) || d.Name() == "node_modules" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".md"):
			return nil
		}
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // the target is a URL
			}
			links++
			to := path
			if target != "" {
				to = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s: no such file", path, m[1])
			} else if anchor != "" && !slices.Contains(anchors(read(t, to)), anchor) {
				t.Errorf("%s: %s: no such heading", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 20 {
		t.Errorf("the documents were not read: %d links", links)
	}
}

// anchors returns the names by which links may refer to the headings of a document.
func anchors(text string) (all []string) {
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return all
}
