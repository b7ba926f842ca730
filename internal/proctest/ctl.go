package proctest

import (
	"bytes"
	"os"
	"os/exec"
)

// Ctl is a run of countctl against a node. Its output and code are there after
// Wait or Kill.
type Ctl struct {
	Stdout, Stderr string
	Code           int // -1 when a signal ended it

	cmd         *exec.Cmd
	out, errOut bytes.Buffer
	ended       bool
}

// StartCtl starts countctl. At the test's end it kills countctl if the test has not waited
// for it.
func (n *Node) StartCtl(args ...string) *Ctl {
	n.t.Helper()
	c := &Ctl{cmd: exec.Command(n.bin.Countctl, append([]string{"--addr", n.URL}, args...)...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errOut
	c.cmd.Dir = n.Cwd
	c.cmd.Env = append(os.Environ(), "COUNTCTL_ADDR=")
	dieWithParent(c.cmd)
	if err := n.site.enter(c.cmd.Start); err != nil {
		n.t.Fatalf("cannot run countctl: %v", err)
	}
	n.t.Cleanup(c.Kill)
	return c
}

// Wait waits for the end of the run.
func (c *Ctl) Wait() {
	if c.ended {
		return
	}
	_ = c.cmd.Wait() // Code returns the outcome
	c.ended = true
	c.Stdout, c.Stderr, c.Code = c.out.String(), c.errOut.String(), c.cmd.ProcessState.ExitCode()
}

// Kill ends the run as a crash does, if it has not ended.
func (c *Ctl) Kill() {
	if !c.ended {
		_ = c.cmd.Process.Kill() // fails only for a process that has ended
	}
	c.Wait()
}

// Ctl runs countctl against the node and waits for its end.
func (n *Node) Ctl(args ...string) *Ctl {
	n.t.Helper()
	c := n.StartCtl(args...)
	c.Wait()
	return c
}

// MustCtl is Ctl for a run that must exit with 0. It returns the output.
func (n *Node) MustCtl(args ...string) string {
	n.t.Helper()
	c := n.Ctl(args...)
	if c.Code != 0 {
		n.t.Fatalf("countctl %q: exit code %d\n%s%s", args, c.Code, c.Stdout, c.Stderr)
	}
	return c.Stdout
}
