package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// startMax bounds the start of a container.
const startMax = "3m"

// network returns a file that names a network namespace with a loopback of its own, so that the image's ports are free.
func network(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "net")
	do(t, os.WriteFile(name, nil, 0o600))
	run(t, "unshare", "--net="+name, "ip", "link", "set", "lo", "up")
	t.Cleanup(func() { _ = syscall.Unmount(name, syscall.MNT_DETACH) })
	return name
}

// container runs programs of an image as an engine would, except for its isolation: in a chroot, as
// the image's user, without any privilege of root.
type container struct {
	t       *testing.T
	of      *image
	root    string // a copy of the image's files
	network string
	env     []string
	process *exec.Cmd
	log     bytes.Buffer
}

func newContainer(t *testing.T, of *image, network string, env ...string) *container {
	t.Helper()
	c := &container{t: t, of: of, root: t.TempDir(), network: network, env: append(slices.Clone(of.env), env...)}
	run(t, "cp", "-a", of.root+"/.", c.root)
	do(t, os.Chmod(c.root, 0o755))
	do(t, os.Mkdir(c.root+"/proc", 0o755))
	do(t, syscall.Mount("proc", c.root+"/proc", "proc", 0, ""))
	t.Cleanup(func() {
		if c.process != nil {
			_ = c.process.Process.Kill()
			_ = c.process.Wait()
		}
		_ = syscall.Unmount(c.root+"/proc", syscall.MNT_DETACH)
		if t.Failed() {
			t.Logf("log:\n%s", &c.log)
		}
	})
	return c
}

// hosts writes the container's /etc/hosts.
func (c *container) hosts(lines string) {
	do(c.t, os.WriteFile(c.root+"/etc/hosts", []byte(lines), 0o644))
}

func (c *container) command(args ...string) *exec.Cmd {
	tool := func(name string) string { // look on this machine's PATH: the image's environment has none
		path, err := exec.LookPath(name)
		do(c.t, err)
		return path
	}
	cmd := exec.Command("nsenter", append([]string{"--net=" + c.network, tool("setpriv"), "--no-new-privs", "--inh-caps=-all",
		tool("chroot"), "--userspec=" + c.of.user, "--groups=", c.root}, args...)...)
	cmd.Env = c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a program of the image until it ends.
func (c *container) run(args ...string) (output string, exit int) {
	c.t.Helper()
	cmd := c.command(args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		c.t.Fatalf("%q: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// ok runs a program of the image that must succeed.
func (c *container) ok(args ...string) string {
	c.t.Helper()
	out, exit := c.run(args...)
	if exit != 0 {
		c.t.Fatalf("%q: exit %d\n%s", args, exit, out)
	}
	return out
}

// start starts the entrypoint.
func (c *container) start(args ...string) {
	c.t.Helper()
	c.process = c.command(append(slices.Clone(c.of.entrypoint), args...)...)
	c.process.Stdout, c.process.Stderr = &c.log, &c.log
	do(c.t, c.process.Start())
}

// signal sends the image's stop signal.
func (c *container) signal() {
	c.t.Helper()
	do(c.t, c.process.Process.Signal(syscall.SIGTERM))
}

// wait waits for the end of the process and returns its exit code.
func (c *container) wait() int {
	process := c.process
	c.process = nil
	late := time.AfterFunc(must.BecomeMax, func() { _ = process.Process.Kill() })
	defer late.Stop()
	_ = process.Wait()
	return process.ProcessState.ExitCode()
}

func (c *container) stop() int {
	c.t.Helper()
	c.signal()
	return c.wait()
}

// passes waits until a health check passes. It repeats a failed check, as an engine does.
func (c *container) passes(check []string) {
	c.t.Helper()
	for end := time.Now().Add(must.BecomeMax); ; time.Sleep(100 * time.Millisecond) {
		out, exit := c.run(check...)
		if exit == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%q: exit %d\n%s", check, exit, out)
		}
	}
}

// TestDockerfile parses the Dockerfile. Unlike the other tests of the image, it does not need root.
func TestDockerfile(t *testing.T) { parse(t) }

// TestImage runs the entrypoint as the image's user. The node becomes ready, counts, passes its health check, exits
// with 0, and has the count after a second start.
func TestImage(t *testing.T) {
	of := build(t, "VERSION=1.2.3")
	if of.labels["org.opencontainers.image.version"] != "1.2.3" {
		t.Errorf("labels %v", of.labels)
	}
	if of.stopSignal != "SIGTERM" || of.user != "65532:65532" || len(of.health) < 2 || of.health[0] != "CMD" {
		t.Errorf("signal %q, user %q, check %q", of.stopSignal, of.user, of.health)
	}
	if !slices.Equal(of.volumes, []string{"/var/lib/countd"}) || !slices.Contains(of.env, "COUNTD_DATA_DIR=/var/lib/countd") {
		t.Errorf("volumes %q, environment %q", of.volumes, of.env)
	}
	if info, err := os.Stat(of.root + "/etc/ssl/certs/ca-certificates.crt"); err != nil || info.Size() == 0 || info.Mode().Perm()&0o444 != 0o444 {
		t.Errorf("certificate authorities: %v, %v", info, err)
	}

	c := newContainer(t, of, network(t))
	if _, exit := c.run(of.health[1:]...); exit != 1 {
		t.Errorf("without a process, the check exits with %d", exit)
	}
	c.start()
	c.ok("/usr/bin/countctl", "status", "--wait", startMax)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.process.Process.Pid))
	do(t, err)
	for _, want := range []string{"Name:\tcountd\n", "Uid:\t65532\t65532\t65532\t65532\n", "Gid:\t65532\t65532\t65532\t65532\n", "CapEff:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the process is\n%s", status)
			break
		}
	}
	c.ok("/usr/bin/countctl", "incr", "1", "like=3")
	c.ok(of.health[1:]...)
	if code := c.stop(); code != 0 {
		t.Errorf("exit %d after SIGTERM", code)
	}
	c.start()
	c.ok("/usr/bin/countctl", "status", "--wait", startMax)
	if out := c.ok("/usr/bin/countctl", "get", "1", "-o", "json"); !strings.Contains(out, `"like":3`) {
		t.Errorf("after another start: %s", out)
	}
	if code := c.stop(); code != 0 {
		t.Errorf("exit %d after SIGTERM", code)
	}

	// An orchestrator must not replace a node that waits for the others.
	waits := newContainer(t, of, c.network)
	waits.start("--join=127.0.0.1:7502", "--bootstrap-expect=3")
	waits.passes(of.health[1:])
	if _, exit := waits.run("/usr/bin/countctl", "status"); exit != 1 {
		t.Errorf("a node that waits is ready: exit %d", exit)
	}
	waits.stop()

	t.Run("compose", func(t *testing.T) { runCluster(t, of, composeNodes(t), "", func(string) {}) })
	t.Run("chart", func(t *testing.T) {
		o, err := render(closed)
		do(t, err)
		secrets := o.secrets(t)
		runCluster(t, of, o.nodes(of), o.domain(), func(root string) { o.mount(t, root, secrets) },
			"COUNTCTL_CA=/etc/countd/tls/ca.crt", "COUNTCTL_TOKEN="+rootToken)
	})
}
