package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestReadmeIsReplayed runs the examples of README.md in their order, and compares their output.
// redis-cli prints as in a terminal.
func TestReadmeIsReplayed(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.Args = append(n.Args, "--redis-addr", n.Redis)
	n.StartReady()
	doc, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, redisPort, _ := net.SplitHostPort(n.Redis)
	here := strings.NewReplacer("127.0.0.1:7400", n.Addr, "redis-cli -p 7403", "redis-cli --no-raw -p "+redisPort)
	token := regexp.MustCompile(`"token":"[^"]*"`)
	examples := regexp.MustCompile("(?s)```(sh|go)\n(.*?)```\n```out\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	ran := map[string]int{}
	for _, example := range examples {
		language, code, want := example[1], here.Replace(example[2]), example[3]
		ran[language]++
		var cmd *exec.Cmd
		if language == "go" {
			path := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd = exec.CommandContext(t.Context(), "go", "run", path)
		} else {
			for _, program := range []string{"curl", "redis-cli"} {
				if _, err := exec.LookPath(program); err != nil && strings.HasPrefix(code, program) {
					t.Skipf("%s is not installed; .ci/run installs it", program)
				}
			}
			cmd = exec.CommandContext(t.Context(), "sh", "-ec", code)
			cmd.Env = append(os.Environ(), "no_proxy=*")
		}
		out, err := cmd.CombinedOutput()
		got := token.ReplaceAllString(strings.TrimSpace(string(out)), `"token":"TOKEN"`)
		if err != nil || got != strings.TrimSpace(want) {
			t.Errorf("%s prints\n%s\nwant\n%s%v", code, got, want, err)
		}
	}
	if ran["sh"] < 3 || ran["go"] < 1 || strings.Count(string(doc), "```out") != len(examples) {
		t.Errorf("%d examples of a shell and %d in Go were run", ran["sh"], ran["go"])
	}
}
