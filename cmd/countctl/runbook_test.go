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
		"internal/cluster/warnings.go": `(?:warn\(|node\(|group\(|replica\(|keyspace\(|Code: )"([a-z_]+)"`,
		"../../api/fault.go":           `(?m)^\tcode\w+ += "([a-z_]+)"`,
	} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(code).FindAllStringSubmatch(string(source), -1)
		for _, m := range found {
			given[m[1]] = !slices.Contains(callersCodes, m[1])
			if command := "\n### `" + m[1] + "`\n\n    "; path == "internal/cluster/warnings.go" && !strings.Contains(runbook(t), command) {
				t.Errorf("the runbook's section of the warning %s does not begin with a command", m[1])
			}
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

// Each alert of the shipped rules has an entry in the runbook, which names what its runbook_url links to.
func TestRunbookHasEveryAlert(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/monitoring/countd.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	entries := section(t, "Alerts")
	alerts := regexp.MustCompile(`(?s)- alert: (\w+)\n.*?runbook_url: \S+#(\S+)\n`).FindAllStringSubmatch(string(rules), -1)
	for _, m := range alerts {
		entry := regexp.MustCompile("(?m)^- .*`" + m[1] + "`.*$").FindString(entries)
		if !strings.Contains(entry, "(#"+m[2]+")") && !strings.Contains(entry, `<a id="`+m[2]+`">`) {
			t.Errorf("%s links to %s, and its entry in the runbook is %q", m[1], m[2], entry)
		}
	}
	if len(alerts) < 20 || len(alerts) != strings.Count(string(rules), "- alert: ") {
		t.Errorf("%d alerts were found", len(alerts))
	}
}

// Each message that countd logs at level ERROR has an entry in the runbook.
func TestRunbookHasEveryErrorOfTheLog(t *testing.T) {
	text := section(t, "What the log says") + section(t, "When it does not start, or exits")
	messages := regexp.MustCompile(`(?i)(?:logger|limited(?:\(\))?)\.Error\("([^"]+)"`).FindAllStringSubmatch(productSource(t), -1)
	for _, m := range messages {
		begins, _, _ := strings.Cut(m[1], ":")
		if !strings.Contains(text, "`"+begins+"`") && !strings.Contains(text, "`"+m[1]+"`") && !strings.Contains(text, "`"+strings.Split(m[1], ",")[0]+"`") {
			t.Errorf("the runbook has no entry for the error %q of the log", m[1])
		}
	}
	if len(messages) < 15 {
		t.Errorf("%d messages were found", len(messages))
	}
}

// section returns the text of a section of the runbook.
func section(t *testing.T, title string) string {
	t.Helper()
	_, text, found := strings.Cut(runbook(t), "\n## "+title+"\n")
	if !found {
		t.Fatalf("the runbook has no section %q", title)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// elsewhere lists messages of the runbook that the program composes from parts, or that come from
// elsewhere.
var elsewhere = []string{
	"address already in use", "holds groups but no node.json", "has a node.json but no groups.json", "writes stopped", "writes of new rows stopped", "writes to groups led here stopped",
}

// productSource returns the sources of both programs and their packages, without tests.
func productSource(t *testing.T) string {
	t.Helper()
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
	return program.String()
}

// The source of the program contains each error and log message that the runbook explains.
func TestRunbookMessagesAreInTheProgram(t *testing.T) {
	program := productSource(t)
	messages := 0
	for _, title := range []string{"When it does not start, or exits", "What the log says"} {
		for _, line := range regexp.MustCompile("(?m)^- (?:<a id=\"[^\"]*\"></a>)?((?:`[^`]+`(?:, )?)+):").FindAllStringSubmatch(section(t, title), -1) {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line[1], -1) {
				messages++
				if !slices.Contains(elsewhere, m[1]) && !strings.Contains(program, m[1]) {
					t.Errorf("the runbook has %q under %q, and no source does", m[1], title)
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
