package program

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
		Version:                         {{Key: "-trimpath", Value: "true"}},
		Version + "+1a2b3c4d5e6f":       {revision, {Key: "vcs.modified", Value: "false"}},
		Version + "+1a2b3c4d5e6f.dirty": {{Key: "vcs.modified", Value: "true"}, revision},
		Version + "+1a2b":               {{Key: "vcs.revision", Value: "1a2b"}},
	} {
		if got := versionText(settings); got != want {
			t.Errorf("%v: %s, want %s", settings, got, want)
		}
	}
}

func TestVersion(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(Version) {
		t.Errorf("%s is no version of the form 0.1.0", Version)
	}
	changes, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(changes), "\n## ")
	if first, _, _ := strings.Cut(after, "\n"); first != Version {
		t.Errorf("the first section of CHANGELOG.md is %q, the program is %s", first, Version)
	}
}
