// Package proctest runs the real programs for tests: it builds them once, starts nodes on
// free ports of the loopback interface, kills and stops them, and calls them over HTTP. It
// knows nothing of the programs' internals.
//
// Invariant: the processes of a test end with the test.
package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Binaries holds the built programs.
type Binaries struct {
	Countd, Countctl string // absolute paths
}

// Run implements TestMain: it builds the programs, passes them to use, runs the tests and
// returns their exit code.
func Run(m *testing.M, use func(Binaries)) int {
	dir, err := os.MkdirTemp("", "countd-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin, err := build(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	use(bin)
	return m.Run()
}

func build(dir string) (Binaries, error) {
	const module = "github.com/countd/countd"
	cmd := exec.Command("go", "build", "-o", dir+"/", module+"/cmd/countd", module+"/cmd/countctl")
	if out, err := cmd.CombinedOutput(); err != nil {
		return Binaries{}, fmt.Errorf("cannot build the programs: %w\n%s", err, out)
	}
	return Binaries{filepath.Join(dir, "countd"), filepath.Join(dir, "countctl")}, nil
}
