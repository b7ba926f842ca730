package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Size is the size of one package, without its tests.
type Size struct {
	Package string // relative to the module
	Lines   int
	Type    string // the type with the most methods
	Methods int    // number of methods of Type
	Cycle   int    // number of files in the largest set of files that all depend on each other

	Positional []string // places of struct literals with more than positionalMax values without field names
}

// positionalMax is how many values without field names a struct literal may have.
const positionalMax = 3

// Sizes returns the size of every package under root.
//
// It checks the types of one package at a time, and treats other packages as empty, apart from
// sync/atomic. So Cycle is a lower bound: Sizes misses a dependency through a value that a generic
// function of another package returns.
func Sizes(root string) ([]Size, error) {
	var sizes []Size
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "pointers.go", pointers, 0)
	if err != nil {
		return nil, err
	}
	atomic, err := new(types.Config).Check("sync/atomic", fset, []*ast.File{f}, nil)
	if err != nil {
		return nil, err
	}
	imp := &emptyPackages{atomic}
	err = filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case dir != root && (skipDir(d.Name()) || isModule(dir)):
			return fs.SkipDir
		}
		files, lines, err := productFiles(fset, dir)
		if err != nil || len(files) == 0 {
			return err
		}
		rel, err := filepath.Rel(root, dir)
		sizes = append(sizes, sizeOf(filepath.ToSlash(rel), lines, fset, imp, files))
		return err
	})
	return sizes, err
}

// productFiles parses the Go files of a directory, except tests. lines is their number of lines.
func productFiles(fset *token.FileSet, dir string) (files []*ast.File, lines int, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_other.go") { // skip _other.go, which is for systems on which the server does not run
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, 0, err
		}
		file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, 0, err
		}
		files, lines = append(files, file), lines+strings.Count(string(src), "\n")
	}
	return files, lines, nil
}

func sizeOf(name string, lines int, fset *token.FileSet, imp types.Importer, files []*ast.File) Size {
	size := Size{Package: name, Lines: lines}
	uses := map[*ast.Ident]types.Object{}
	conf := types.Config{Importer: imp, Error: func(error) {}} // ignore errors, because names of other packages are unknown
	literals := map[ast.Expr]types.TypeAndValue{}
	pkg, _ := conf.Check(name, fset, files, &types.Info{Uses: uses, Types: literals})
	for e, t := range literals {
		if lit, ok := e.(*ast.CompositeLit); ok && isPositional(lit, t.Type) {
			size.Positional = append(size.Positional, fset.Position(lit.Pos()).String())
		}
	}
	for _, n := range pkg.Scope().Names() {
		named, ok := pkg.Scope().Lookup(n).Type().(*types.Named)
		if ok && named.Obj().Pkg() == pkg && named.NumMethods() > size.Methods {
			size.Type, size.Methods = named.Obj().Name(), named.NumMethods()
		}
	}
	needs := map[string]map[string]bool{} // by file: the other files that declare what the file uses
	for id, o := range uses {
		if o.Pkg() != pkg || !o.Pos().IsValid() || !beyondFunctions(o, pkg) {
			continue
		}
		from, to := fset.Position(id.Pos()).Filename, fset.Position(o.Pos()).Filename
		if needs[from] == nil {
			needs[from] = map[string]bool{}
		}
		needs[from][to] = true
	}
	size.Cycle = largestCycle(needs)
	return size
}

// isPositional reports whether a literal of a struct type has more than positionalMax values
// without field names. It checks only structs of the package itself, because go vet checks those of
// other packages.
func isPositional(lit *ast.CompositeLit, t types.Type) bool {
	if t == nil || len(lit.Elts) <= positionalMax {
		return false
	}
	under := t.Underlying()
	if p, ok := under.(*types.Pointer); ok { // a literal without a type in a list of pointers
		under = p.Elem().Underlying()
	}
	_, isStruct := under.(*types.Struct)
	_, named := lit.Elts[0].(*ast.KeyValueExpr)
	return isStruct && !named
}

// beyondFunctions reports whether an object is declared at package level, or is a field or a
// method.
func beyondFunctions(o types.Object, pkg *types.Package) bool {
	switch o := o.(type) {
	case *types.Var:
		return o.IsField() || o.Parent() == pkg.Scope()
	case *types.Func:
		return true
	}
	return o.Parent() == pkg.Scope()
}

// largestCycle returns the size of the largest set of nodes that all reach each other.
func largestCycle(needs map[string]map[string]bool) int {
	reached := map[string]map[string]bool{}
	for from := range needs {
		seen := map[string]bool{}
		var visit func(string)
		visit = func(node string) {
			for to := range needs[node] {
				if !seen[to] {
					seen[to] = true
					visit(to)
				}
			}
		}
		visit(from)
		reached[from] = seen
	}
	largest := 1
	for node, seen := range reached {
		n := 0
		for other := range seen {
			if reached[other][node] {
				n++
			}
		}
		largest = max(largest, n)
	}
	return largest
}

// emptyPackages is an importer that returns an empty package for every path except sync/atomic.
// That package is needed because an atomic.Pointer contains a type of the importing package.
type emptyPackages struct{ atomic *types.Package }

// pointers declares the part of sync/atomic that connects types of the importing package.
const pointers = `package atomic
type Pointer[T any] struct{ _ *T }
func (*Pointer[T]) Load() *T
func (*Pointer[T]) Store(*T)
func (*Pointer[T]) Swap(*T) *T
func (*Pointer[T]) CompareAndSwap(_, _ *T) bool`

// Import implements types.Importer.
func (e *emptyPackages) Import(path string) (*types.Package, error) {
	if path == "sync/atomic" {
		return e.atomic, nil
	}
	name := path[strings.LastIndex(path, "/")+1:]
	pkg := types.NewPackage(path, name)
	pkg.MarkComplete()
	return pkg, nil
}

// Limits are bounds on the Size of a package.
type Limits struct{ Lines, Methods, Cycle int }
