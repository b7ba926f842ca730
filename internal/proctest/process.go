package proctest

import (
	"os"
	"os/exec"
)

// process is one run of a program.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once code is known
	code   int           // -1 if a signal ended it
}

// run starts a program in the network of a site. If the test process dies, so does the program.
func run(site Site, cmd *exec.Cmd) (*process, error) {
	dieWithParent(cmd)
	if err := site.enter(cmd.Start); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the process
		_ = cmd.Wait() // ignore the error: code is the outcome
		p.code = cmd.ProcessState.ExitCode()
		close(p.exited)
	}()
	return p, nil
}

// kill sends a signal that ends the process at once, and waits for the end.
func (p *process) kill(s os.Signal) {
	_ = p.cmd.Process.Signal(s) // ignore the error: the process has ended
	<-p.exited
}
