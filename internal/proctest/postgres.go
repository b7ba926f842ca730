package proctest

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/countd/countd/internal/must"
)

// StartPostgres runs PostgreSQL with logical replication and a new, empty data directory. Its
// superuser postgres needs no password. The test is skipped if PostgreSQL is not installed.
func StartPostgres(t testing.TB) *Server {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("PostgreSQL (Debian: postgresql) is not installed; .ci/run installs it")
	}
	bin := filepath.Dir(found[len(found)-1])
	dir, err := os.MkdirTemp("", "countd-postgres-") // not in the test's temporary directory, which only root may enter if root runs the test
	must.Do(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		as.Credential = userOf(t, "postgres")
		must.Do(t, os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)))
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, as
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	addr := FreePorts(t, 1)[0]
	host, port, _ := net.SplitHostPort(addr)
	s := &Server{Addr: addr, name: filepath.Join(bin, "postgres"), dir: dir, as: as.Credential, stop: syscall.SIGQUIT}
	s.args = []string{"-D", data, "-p", port, "-h", host, "-c", "unix_socket_directories=", "-c", "wal_level=logical", "-c", "max_replication_slots=32", "-c", "fsync=off", "-c", "log_min_messages=fatal"}
	s.ready = func() bool {
		return exec.Command(filepath.Join(bin, "pg_isready"), "-q", "-h", host, "-p", port).Run() == nil
	}
	s.start(t)
	t.Cleanup(s.Kill)
	return s
}

func userOf(t testing.TB, name string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup(name)
	must.Do(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	must.Do(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	must.Do(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
