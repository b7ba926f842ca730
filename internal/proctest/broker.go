package proctest

import (
	"cmp"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// Server is a running program other than countd, such as a broker. It ends with the test.
type Server struct {
	Addr string
	name string
	args []string
	dir  string              // working directory; "" for the test's
	as   *syscall.Credential // user that runs the server; nil for the test's
	stop syscall.Signal      // signal that ends the server and its children at once; 0 for SIGKILL
	// ready reports whether a server that accepts connections can serve. If ready is nil, every
	// such server can.
	ready func() bool
	live  *process
	log   Buffer
}

// KafkaPartitions is the number of partitions of the topic likes of StartKafka.
const KafkaPartitions = 3

// StartKafka builds and runs a fake of Kafka with its data on disk, and the topics likes and
// likes.dead.
func StartKafka(t testing.TB) *Server {
	t.Helper()
	path := Build(t, "", module+"internal/proctest/testdata/kafka")
	addr := FreePorts(t, 1)[0]
	_, port, _ := net.SplitHostPort(addr)
	return Serve(t, addr, path, port, t.TempDir(), strconv.Itoa(KafkaPartitions))
}

// natsServer builds nats-server, and returns the paths of its module and of the program.
var natsServer = sync.OnceValues(func() (paths [2]string, err error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return paths, fmt.Errorf("cannot find the module: %w", err)
	}
	paths[0] = filepath.Join(strings.TrimSpace(string(root)), "internal", "testbroker", "nats")
	build := exec.Command("go", "tool", "-n", "nats-server")
	build.Dir = paths[0]
	path, err := build.Output()
	if err != nil {
		return paths, fmt.Errorf("cannot build nats-server: %w", err)
	}
	paths[1] = strings.TrimSpace(string(path))
	return paths, nil
})

// StartNATS runs nats-server with JetStream on disk and the given arguments.
func StartNATS(t testing.TB, args ...string) *Server {
	t.Helper()
	paths, err := natsServer()
	must.Do(t, err)
	Note(t, paths[0])
	addr := FreePorts(t, 1)[0]
	host, port, _ := net.SplitHostPort(addr)
	return Serve(t, addr, paths[1], append([]string{"-a", host, "-p", port, "-js", "-sd", t.TempDir()}, args...)...)
}

// Serve runs a program until the test ends. It returns once the program accepts connections at addr.
func Serve(t testing.TB, addr, program string, args ...string) *Server {
	t.Helper()
	s := &Server{Addr: addr, name: program, args: args}
	s.start(t)
	t.Cleanup(s.Kill)
	return s
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	cmd := exec.Command(s.name, s.args...)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.Dir, cmd.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: s.as}
	var err error
	if s.live, err = run(Site{}, cmd); err != nil {
		t.Fatalf("cannot start %s: %v", filepath.Base(s.name), err)
	}
	for end := time.Now().Add(must.BecomeMax); ; time.Sleep(pollEvery) {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			conn.Close()
			if s.ready == nil || s.ready() {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not serve: %v\n%s", filepath.Base(s.name), err, s.log.String())
		}
	}
}

// Dir returns the directory that StartPostgres made. The data is in its subdirectory data.
func (s *Server) Dir() string { return s.dir }

// Log returns what the server has printed.
func (s *Server) Log() string { return s.log.String() }

// Kill ends the server at once.
func (s *Server) Kill() {
	s.live.kill(cmp.Or(s.stop, syscall.SIGKILL))
}

// Stop sends SIGTERM to the server, and requires exit code 0.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.live.kill(syscall.SIGTERM)
	if s.live.code != 0 {
		t.Errorf("%s ended with exit code %d:\n%s", filepath.Base(s.name), s.live.code, s.log.String())
	}
}

// Restart kills the server and starts it again with the same data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	s.start(t)
}
