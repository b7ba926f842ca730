package proctest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill a process whose test was killed itself.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
