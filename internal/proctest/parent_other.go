//go:build !linux

package proctest

import "os/exec"

// dieWithParent does nothing where the kernel offers nothing for it.
func dieWithParent(*exec.Cmd) {}
