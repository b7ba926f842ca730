// Package console tests the console in a browser, on real nodes. It is a module of its own, so that countd depends
// on no driver of browsers. It needs chromium.
package console

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

var screens = flag.String("screens", "", "write screenshots of all pages into this directory")

var bin proctest.Binaries

// TestMain builds the programs in the product's module, because the test's module lacks their
// dependencies.
func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "countd-bin-")
	if err == nil {
		build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "./cmd/countd", "./cmd/countctl")
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("cannot build the programs: %w\n%s", err, bytes.TrimSpace(out))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = proctest.Binaries{Countd: filepath.Join(dir, "countd"), Countctl: filepath.Join(dir, "countctl")}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}
