// Package deploy tests the image, the compose file and the chart without an engine or a cluster: it follows the
// Dockerfile's steps, parses the files as the tools that use them do, and runs the image's files as their user.
// It tests the rules and the dashboard of deploy/monitoring with promtool, Grafana's types and a running node.
//
// It is a module of its own, so that countd depends on none of these tools.
package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// repository is the directory of the product's module.
const repository = "../.."

// TestMain runs the tests in a mount namespace of their own if the user is root, so that no mount
// outlives them.
func TestMain(m *testing.M) {
	const inside = "COUNTD_TEST_NAMESPACE"
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=yes")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := again.Run()
	if again.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(again.ProcessState.ExitCode())
}

// countd returns the path of a countd built from this checkout.
var countd = sync.OnceValues(func() (string, error) {
	const dir = "bin/deploy-test/"
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "./cmd/countd")
	build.Dir, build.Env = repository, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return filepath.Abs(filepath.Join(repository, dir, "countd"))
})

// checkSettings fails the test if countd refuses the arguments or the environment of a container.
func checkSettings(t *testing.T, env, args []string) {
	t.Helper()
	program, err := countd()
	if err != nil {
		t.Fatalf("cannot build countd: %v", err)
	}
	check := exec.Command(program, append([]string{"config"}, args...)...)
	check.Env = env
	if out, err := check.CombinedOutput(); err != nil || strings.Contains(string(out), "not a setting") {
		t.Errorf("countd config %q with %q: %v\n%s", args, env, err, out)
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
