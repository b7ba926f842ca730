package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/countdtest"
)

func runbook(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every warning that status gives has its line in the runbook, and the other way
// round.
func TestRunbookHasEveryWarning(t *testing.T) {
	source, err := os.ReadFile("internal/cluster/warnings.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(runbook(t), "### What each warning of status means")
	section, _, _ = strings.Cut(section, "\n## ")
	given, told := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:warn\(|node\(|group\(|Code: )"([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		given[m[1]] = true
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		told[m[1]] = true
	}
	for code := range given {
		if !told[code] {
			t.Errorf("the runbook says nothing of %s", code)
		}
	}
	for code := range told {
		if !given[code] {
			t.Errorf("%s is in the runbook, and no warning", code)
		}
	}
	if len(given) == 0 {
		t.Error("no warnings were found")
	}
}

// Every command of the runbook is one, with flags that it has.
func TestRunbookCommandsAreUnderstood(t *testing.T) {
	i := against(t, countdtest.New(t))
	commands := regexp.MustCompile(`(?m)^    countctl ([^#\n]+)`).FindAllStringSubmatch(runbook(t), -1)
	for _, m := range commands {
		args := strings.Fields(regexp.MustCompile(`'[^']*'`).ReplaceAllString(m[1], "x"))
		if got := i.Run(append(args, "--help")...); got.Code != cli.ExitOK || !strings.Contains(got.Out, "Usage:") {
			t.Errorf("countctl %s: exit code %d, %s", m[1], got.Code, got.Err)
		}
		for _, arg := range args {
			if name, is := strings.CutPrefix(arg, "--"); is && !strings.Contains(i.Run(append(args, "--help")...).Out, "--"+name) {
				t.Errorf("countctl %s has no flag %s", m[1], arg)
			}
		}
	}
	if len(commands) < 10 {
		t.Errorf("%d commands were found", len(commands))
	}
}
