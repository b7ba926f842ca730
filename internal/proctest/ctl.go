package proctest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
)

// Ctl is one run of countctl against a node.
type Ctl struct {
	Stdout, Stderr string
	Code           int // -1 when a signal ended it
}

// Ctl runs countctl against the node and waits for its end.
func (n *Node) Ctl(bin Binaries, args ...string) Ctl {
	n.t.Helper()
	cmd, out, errOut := n.ctlCommand(bin, args)
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("cannot run countctl: %v", err)
	}
	return Ctl{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// MustCtl is Ctl for a run that must exit 0. It returns what was printed.
func (n *Node) MustCtl(bin Binaries, args ...string) string {
	n.t.Helper()
	ctl := n.Ctl(bin, args...)
	if ctl.Code != 0 {
		n.t.Fatalf("countctl %q: exit code %d\n%s%s", args, ctl.Code, ctl.Stdout, ctl.Stderr)
	}
	return ctl.Stdout
}

// StartCtl runs countctl beside the test. The returned function kills it, if it
// runs, and returns what it did; it is called at the test's end if not before.
func (n *Node) StartCtl(bin Binaries, args ...string) (kill func() Ctl) {
	n.t.Helper()
	cmd, out, errOut := n.ctlCommand(bin, args)
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		n.t.Fatalf("cannot run countctl: %v", err)
	}
	ended := false
	kill = func() Ctl {
		if !ended {
			ended = true
			_ = cmd.Process.Kill() // fails only for a process that has ended
			_ = cmd.Wait()
		}
		return Ctl{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
	}
	n.t.Cleanup(func() { kill() })
	return kill
}

func (n *Node) ctlCommand(bin Binaries, args []string) (cmd *exec.Cmd, out, errOut *bytes.Buffer) {
	out, errOut = new(bytes.Buffer), new(bytes.Buffer)
	cmd = exec.Command(bin.Countctl, append([]string{"--addr", n.URL}, args...)...)
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.Env = append(os.Environ(), "COUNTCTL_ADDR=")
	return cmd, out, errOut
}
