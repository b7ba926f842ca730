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

// module begins the import path of each package of the module.
const module = "github.com/countd/countd/"

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
	sources, err := build("", dir+"/", module+"cmd/countd", module+"cmd/countctl")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	use(Binaries{filepath.Join(dir, "countd"), filepath.Join(dir, "countctl"), sources})
	return m.Run()
}

// build runs go build in the directory dir. to is a file or, if it ends in a slash, a directory. It
// returns the directories of the sources in the module of dir and in modules that a path replaces, and their go.mod and
// go.sum.
func build(dir, to string, packages ...string) (sources []string, err error) {
	run := func(args ...string) (string, error) {
		var errs strings.Builder
		cmd := exec.Command("go", append(args, packages...)...)
		cmd.Dir = dir
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
	const format = "{{with .Module}}{{if or .Main .Replace}}{{$.Dir}}\n{{.Dir}}/go.mod\n{{.Dir}}/go.sum{{end}}{{end}}"
	list, err := run("list", "-deps", "-f", format)
	if err != nil {
		return nil, err
	}
	sources = strings.Split(list, "\n")
	slices.Sort(sources)
	return slices.Compact(sources), nil
}

// Build runs go build for a program in the directory dir; "" means the directory of the test. It returns the path of
// the program. If its sources change, go test runs the test again.
func Build(t testing.TB, dir, program string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "program")
	sources, err := build(dir, path, program)
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
