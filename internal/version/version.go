// Package version owns the version of the programs: the one constant that a release changes.
// It knows nothing of cluster versions, which package catalog owns.
//
// Invariant: the programs, their metrics and the first section of CHANGELOG.md name the same
// version.
package version

import "runtime/debug"

// Number is the version of countd and countctl, as semver.org defines versions.
const Number = "0.1.0"

// commitDigits is the length of the commit in String.
const commitDigits = 12

// String returns Number, followed by "+" and the git commit if the build recorded one, and by
// ".dirty" if files differed from that commit: 0.1.0+1a2b3c4d5e6f.dirty.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Number
	}
	return of(info.Settings)
}

func of(settings []debug.BuildSetting) string {
	commit, dirty := "", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			commit = "+" + s.Value[:min(commitDigits, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ".dirty"
		}
	}
	if commit == "" {
		return Number
	}
	return Number + commit + dirty
}
