package proctest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the process of cmd if the test is killed.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
