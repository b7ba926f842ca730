//go:build !linux

package proctest

import "os/exec"

// dieWithParent does nothing, because only Linux can kill a process when its parent dies.
func dieWithParent(*exec.Cmd) {}
