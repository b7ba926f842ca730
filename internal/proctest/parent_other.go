//go:build !linux

package proctest

import "os/exec"

// dieWithParent does nothing on systems without such a feature.
func dieWithParent(*exec.Cmd) {}
