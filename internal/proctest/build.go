// Package proctest owns the real programs in tests. It builds countd and countctl once, starts
// nodes on free ports of the loopback interface, kills and stops them, and calls them over HTTP. It
// also starts other servers that tests need: brokers, PostgreSQL and Redis.
//
// It uses only the command lines, signals, files and public ports of the programs, and never their
// internals.
//
// Invariant: the processes of a test end with the test.
package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
)

// logStoreEnv is the variable with the log store of nodes whose test sets none (make e2e-boltdb).
const logStoreEnv = "COUNTD_LOG_STORE"

// Binaries holds the built programs.
type Binaries struct {
	Countd, Countctl string // absolute paths

	sources []string // sources of the programs, for Note
}

// Run implements TestMain: it builds the programs, calls use with them, runs the tests, and returns
// the exit code of the tests.
func Run(m *testing.M, use func(Binaries)) int {
	dir, err := os.MkdirTemp("", "countd-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	sources, err := build(dir+"/", "cmd/countd", "cmd/countctl")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	use(Binaries{filepath.Join(dir, "countd"), filepath.Join(dir, "countctl"), sources})
	return m.Run()
}

// build builds programs of the module. to is a file or, if it ends in a slash, a directory. It
// returns the directories of the programs' sources in the module, and the paths of go.mod and
// go.sum.
func build(to string, packages ...string) (sources []string, err error) {
	const module = "github.com/countd/countd/"
	for i, name := range packages {
		packages[i] = module + name
	}
	run := func(args ...string) (string, error) {
		var errs strings.Builder
		cmd := exec.Command("go", append(args, packages...)...)
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("cannot build the programs: %w\n%s", err, errs.String())
		}
		return strings.TrimSpace(string(out)), nil
	}
	// Omit the data for debuggers, because writing it takes half of the linker's time. Stack traces
	// do not need it.
	if _, err := run("build", "-ldflags=-s -w", "-o", to); err != nil {
		return nil, err
	}
	const format = "{{with .Module}}{{if .Main}}{{$.Dir}}\n{{.Dir}}/go.mod\n{{.Dir}}/go.sum{{end}}{{end}}"
	list, err := run("list", "-deps", "-f", format)
	if err != nil {
		return nil, err
	}
	sources = strings.Split(list, "\n")
	slices.Sort(sources)
	return slices.Compact(sources), nil
}

// Build builds a program of the module, such as examples/go, and returns its path. If the sources
// of the program change, go test runs the test again.
func Build(t testing.TB, name string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), filepath.Base(name))
	sources, err := build(path, name)
	must.Do(t, err)
	Note(t, sources...)
	return path
}

// Note makes go test run the test again if the sources of a program or logStoreEnv have changed.
// For this, Note opens the sources and reads the variable: go test reuses a cached result unless a
// file or variable that the test itself used has changed. For a directory, all its files count.
// Files that only go build or TestMain reads do not count.
func Note(t testing.TB, sources ...string) {
	t.Helper()
	_ = os.Getenv(logStoreEnv)
	for _, source := range sources {
		f, err := os.Open(source)
		must.Do(t, err)
		f.Close()
	}
}
