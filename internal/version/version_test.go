package version

import (
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestCommitFollows(t *testing.T) {
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d"}
	for want, settings := range map[string][]debug.BuildSetting{
		Number:                         {{Key: "-trimpath", Value: "true"}},
		Number + "+1a2b3c4d5e6f":       {revision, {Key: "vcs.modified", Value: "false"}},
		Number + "+1a2b3c4d5e6f.dirty": {{Key: "vcs.modified", Value: "true"}, revision},
		Number + "+1a2b":               {{Key: "vcs.revision", Value: "1a2b"}},
	} {
		if got := of(settings); got != want {
			t.Errorf("%v: %s, want %s", settings, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(Number) {
		t.Errorf("%s is no version of the form 0.1.0", Number)
	}
	changes, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(changes), "\n## ")
	if first, _, _ := strings.Cut(after, "\n"); first != Number {
		t.Errorf("the first section of CHANGELOG.md is %q, the program is %s", first, Number)
	}
}
