package api

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCountersDocIsReplayed runs the examples of docs/COUNTERS.md.
func TestCountersDocIsReplayed(t *testing.T) { replayDoc(t, "COUNTERS.md", 5, 2, 1) }

// TestMembersDocIsReplayed runs the examples of docs/MEMBERS.md.
func TestMembersDocIsReplayed(t *testing.T) { replayDoc(t, "MEMBERS.md", 8, 1, 2) }

// replayDoc runs the shell and Python examples of a doc in order against a node, and compares their
// output. The examples in Go are tests of package client, so replayDoc only counts them. The doc
// must have at least the given number of examples of each kind.
func replayDoc(t *testing.T, name string, shells, pythons, gos int) {
	l := startReal(t)
	for _, program := range []string{"sh", "curl", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("this test runs the examples of docs/%s, which need %s: %v", name, program, err)
		}
	}
	doc, err := os.ReadFile("../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	goExamples, err := os.ReadFile("../client/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(doc), "```")
	ran := map[string]int{}
	for i := 1; i < len(blocks); i += 2 {
		language, code, _ := strings.Cut(blocks[i], "\n")
		var cmd *exec.Cmd
		switch language {
		case "sh":
			cmd = exec.CommandContext(t.Context(), "sh", "-ec", code)
		case "python":
			cmd = exec.CommandContext(t.Context(), "python3", "-c", code)
		case "go":
			if !strings.Contains(string(goExamples), strings.TrimSpace(code)) {
				t.Errorf("client/example_test.go does not have\n%s", code)
			}
			ran[language]++
			continue
		default:
			continue
		}
		want, isOutput := strings.CutPrefix(blocks[i+2], "out\n")
		if !isOutput {
			t.Fatalf("an example without its output:\n%s", code)
		}
		cmd.Env = append(os.Environ(), "COUNTD=http://"+l.server.Addr().String(), "no_proxy=*")
		got, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(got)) != strings.TrimSpace(want) {
			t.Errorf("%s prints\n%swant\n%s: %v", code, got, want, err)
		}
		ran[language]++
	}
	if ran["sh"] < shells || ran["python"] < pythons || ran["go"] < gos {
		t.Errorf("ran %v", ran)
	}
}
