package proctest

import (
	"bytes"
	"os"
	"os/exec"
)

// Ctl is a run of countctl against a node. Wait and Kill set its output and code.
type Ctl struct {
	Stdout, Stderr string
	Code           int // exit code; -1 if a signal ended the run

	process     *process
	out, errOut bytes.Buffer
}

// StartCtl starts countctl. The end of the test kills countctl if it still runs.
func (n *Node) StartCtl(args ...string) *Ctl {
	n.t.Helper()
	c, cmd := &Ctl{}, exec.Command(n.bin.Countctl, append([]string{"--addr", n.URL}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &c.out, &c.errOut, n.Cwd
	cmd.Env = append(os.Environ(), addrEnv+"=")
	var err error
	if c.process, err = run(n.site, cmd); err != nil {
		n.t.Fatalf("cannot run countctl: %v", err)
	}
	n.t.Cleanup(c.Kill)
	return c
}

// Wait waits for the end of the run.
func (c *Ctl) Wait() {
	<-c.process.exited
	c.Stdout, c.Stderr, c.Code = c.out.String(), c.errOut.String(), c.process.code
}

// Kill kills the run with SIGKILL if it has not ended.
func (c *Ctl) Kill() {
	c.process.kill(os.Kill)
	c.Wait()
}

// Ctl runs countctl against the node and waits for its end.
func (n *Node) Ctl(args ...string) *Ctl {
	n.t.Helper()
	c := n.StartCtl(args...)
	c.Wait()
	return c
}

// MustCtl is like Ctl, but the run must exit with 0. It returns the output.
func (n *Node) MustCtl(args ...string) string {
	n.t.Helper()
	c := n.Ctl(args...)
	if c.Code != 0 {
		n.t.Fatalf("countctl %q: exit code %d\n%s%s", args, c.Code, c.Stdout, c.Stderr)
	}
	return c.Stdout
}
