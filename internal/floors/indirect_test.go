package floors

import (
	"os/exec"
	"strings"
	"testing"
)

// unwanted are archived or heavy modules that are only indirect dependencies.
var unwanted = []string{"github.com/boltdb/bolt", "github.com/coreos/etcd", "github.com/getsentry/sentry-go"}

// TestUnwantedModulesAreJustified: docs/ARCHITECTURE.md explains exactly those unwanted modules
// that are linked into a program.
func TestUnwantedModulesAreJustified(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "../../cmd/...").Output()
	if err != nil {
		t.Fatalf("cannot list the packages of the programs: %v", err)
	}
	linked := map[string]bool{}
	for module := range strings.Lines(string(out)) {
		linked[strings.TrimSpace(module)] = true
	}
	if !linked["github.com/cockroachdb/pebble/v2"] {
		t.Fatal("the list lacks modules that are there")
	}
	_, table, _ := strings.Cut(read(t, architecture), "\n| indirect module |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, module := range unwanted {
		name := strings.TrimPrefix(module, "github.com/")
		if named := strings.Contains(table, "\n| "+name); named != linked[module] {
			t.Errorf("%s: a program is linked with it %v, and the table has it %v", module, linked[module], named)
		}
	}
}
