package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
)

func runbook(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// callersCodes lists the error codes that need no action by an operator.
var callersCodes = []string{
	"invalid_argument", "not_found", "method_not_allowed", "request_timeout", "overflow", "keyspace_exists", "too_large", "idempotency_conflict",
}

// Each warning of status and each error that needs an operator has a heading in the runbook. Each
// heading that is a code belongs to such a warning or error.
func TestRunbookHasEveryWarningAndError(t *testing.T) {
	given, headings := map[string]bool{}, map[string]bool{}
	for path, code := range map[string]string{
		"internal/cluster/warnings.go": `(?:warn\(|node\(|group\(|Code: )"([a-z_]+)"`,
		"../../api/fault.go":           `(?m)^\tcode\w+ += "([a-z_]+)"`,
	} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(code).FindAllStringSubmatch(string(source), -1)
		for _, m := range found {
			given[m[1]] = !slices.Contains(callersCodes, m[1])
		}
		if len(found) < 10 {
			t.Errorf("%d codes were found in %s", len(found), path)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^### `([a-z_]+)`$").FindAllStringSubmatch(runbook(t), -1) {
		headings[m[1]] = true
	}
	for code, operators := range given {
		if operators && !headings[code] {
			t.Errorf("the runbook has no heading %s", code)
		}
	}
	for code := range headings {
		if !given[code] {
			t.Errorf("%s is a heading of the runbook, and neither a warning nor an operator's error", code)
		}
	}
}

// elsewhere lists messages of the runbook that the program composes from parts, or that come from
// elsewhere.
var elsewhere = []string{
	"address already in use", "holds groups but no node.json", "has a node.json but no groups.json", "writes stopped", "writes of new rows stopped", "writes to groups led here stopped",
}

// The source of the program contains each error and log message that the runbook explains.
func TestRunbookMessagesAreInTheProgram(t *testing.T) {
	var program strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		program.Write(source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	messages := 0
	for _, section := range []string{"When it does not start, or exits", "What the log says"} {
		_, text, _ := strings.Cut(runbook(t), "\n## "+section+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
		for _, line := range regexp.MustCompile("(?m)^- (?:<a id=\"[^\"]*\"></a>)?((?:`[^`]+`(?:, )?)+):").FindAllStringSubmatch(text, -1) {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line[1], -1) {
				messages++
				if !slices.Contains(elsewhere, m[1]) && !strings.Contains(program.String(), m[1]) {
					t.Errorf("the runbook has %q under %q, and no source does", m[1], section)
				}
			}
		}
	}
	if messages < 25 {
		t.Errorf("%d messages were found", messages)
	}
}

// Every command in the runbook exists and has the flags that the runbook uses.
func TestRunbookCommandsAreUnderstood(t *testing.T) {
	i := against(t, nodetest.New(t))
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
