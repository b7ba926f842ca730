package proctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// go test logs the files that a test uses, and decides from this log whether to run the test again.
// The log contains the sources of a program that the test built.
func TestSourcesAreNoted(t *testing.T) {
	t.Parallel()
	const inner = "PROCTEST_BUILD_TO"
	if to := os.Getenv(inner); to != "" {
		sources, err := build("", to, module+"internal/proctest/testdata/kafka")
		if err != nil {
			t.Fatal(err)
		}
		NewNode(t, Binaries{sources: sources}, t.TempDir())
		return
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	cmd := exec.Command(os.Args[0], "-test.run=^TestSourcesAreNoted$", "-test.testlogfile="+log)
	cmd.Env = append(os.Environ(), inner+"="+filepath.Join(dir, "kafka"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	noted, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{"getenv " + logStoreEnv}
	for _, source := range []string{"internal/proctest/testdata/kafka", "go.mod", "go.sum"} {
		lines = append(lines, "open "+filepath.Join(root, source))
	}
	for _, line := range lines {
		if !strings.Contains(string(noted), line+"\n") {
			t.Errorf("the log of what the test opened has no line %q:\n%s", line, noted)
		}
	}
}
