package proctest

import (
	"cmp"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// Server is a third-party program, such as a broker. It ends with the test.
type Server struct {
	Addr string
	name string
	args []string
	dir  string              // working directory; empty: the test's
	as   *syscall.Credential // nil: the test's user
	stop syscall.Signal      // signal that ends the server and its children at once; 0: SIGKILL
	// ready reports whether the server serves, once it accepts connections; nil: it does.
	ready func() bool
	live  *process
}

// KafkaPartitions is how many partitions the topic likes of StartKafka has.
const KafkaPartitions = 3

// StartKafka builds and runs a server of Kafka's protocol with its data on disk, and the topics
// likes and likes.dead.
func StartKafka(t testing.TB) *Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kafka")
	sources, err := build(path, "internal/testbroker/kafka")
	must.Do(t, err)
	note(t, sources)
	addr := FreePorts(t, 1)[0]
	_, port, _ := net.SplitHostPort(addr)
	s := &Server{Addr: addr, name: path, args: []string{port, t.TempDir(), strconv.Itoa(KafkaPartitions)}}
	s.start(t)
	t.Cleanup(s.Kill)
	return s
}

// StartNATS builds and runs a nats-server with JetStream on disk, and further arguments.
func StartNATS(t testing.TB, args ...string) *Server {
	t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}")
	root, err := list.Output()
	if err != nil {
		t.Fatalf("cannot find the module: %v", err)
	}
	build := exec.Command("go", "tool", "-n", "nats-server")
	build.Dir = filepath.Join(strings.TrimSpace(string(root)), "internal", "testbroker", "nats")
	note(t, []string{build.Dir})
	path, err := build.Output()
	if err != nil {
		t.Fatalf("cannot build nats-server: %v", err)
	}
	addr := FreePorts(t, 1)[0]
	host, port, _ := net.SplitHostPort(addr)
	s := &Server{Addr: addr, name: strings.TrimSpace(string(path)), args: append([]string{"-a", host, "-p", port, "-js", "-sd", t.TempDir()}, args...)}
	s.start(t)
	t.Cleanup(s.Kill)
	return s
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	cmd := exec.Command(s.name, s.args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: s.as}
	var err error
	if s.live, err = run(Site{}, cmd); err != nil {
		t.Fatalf("cannot start %s: %v", filepath.Base(s.name), err)
	}
	for end := time.Now().Add(readyTimeout); ; time.Sleep(pollEvery) {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			conn.Close()
			if s.ready == nil || s.ready() {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not serve: %v", filepath.Base(s.name), err)
		}
	}
}

// Dir returns the directory that StartPostgres made, with the data below it in data.
func (s *Server) Dir() string { return s.dir }

// Kill ends the server at once.
func (s *Server) Kill() {
	s.live.kill(cmp.Or(s.stop, syscall.SIGKILL))
}

// Restart kills the server and runs it again over the same data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	s.start(t)
}
