// Package program owns what both programs have in common: their version, which is the only constant
// that a release changes; flags for durations with days; a limit on repeated log messages; and
// files that appear whole or not at all. It knows nothing of cluster versions, which package
// catalog owns.
//
// Invariant: the programs, their metrics and the first section of CHANGELOG.md name the same
// version.
package program

import "runtime/debug"

// Version is the version of countd and countctl, as semver.org defines versions.
const Version = "0.1.0"

const commitDigits = 12

// VersionText returns Version, followed by "+" and the git commit if the build recorded one, and by
// ".dirty" if files differed from that commit: 0.1.0+1a2b3c4d5e6f.dirty.
func VersionText() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	return versionText(info.Settings)
}

func versionText(settings []debug.BuildSetting) string {
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
		return Version
	}
	return Version + commit + dirty
}
