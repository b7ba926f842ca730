package proctest

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/countd/countd/internal/must"
)

// StartPostgres runs PostgreSQL with logical replication and a new, empty data directory. Its
// superuser postgres needs no password. The test is skipped if PostgreSQL is not installed. A server
// with a template begins with a copy of it, and has the template's system identifier.
func StartPostgres(t testing.TB, template *PostgresTemplate) *Server {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("PostgreSQL (Debian: postgresql) is not installed; .ci/run installs it")
	}
	bin := filepath.Dir(found[len(found)-1])
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		as.Credential = userOf(t, "postgres")
	}
	dir := postgresDir(t, as)
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	run := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.SysProcAttr = dir, as
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", filepath.Base(name), err, out)
		}
	}
	initdb := func(dir, data string) {
		t.Helper()
		run(dir, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync")
	}
	if template == nil {
		initdb(dir, data)
	} else {
		template.once.Do(func() {
			template.dir = postgresDir(t, as)
			initdb(template.dir, filepath.Join(template.dir, "data"))
		})
		run(dir, "cp", "-a", filepath.Join(template.dir, "data"), data)
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

// PostgresTemplate is a data directory that servers copy, because initdb takes a second. The zero
// value is ready for StartPostgres.
type PostgresTemplate struct {
	once sync.Once
	dir  string
}

// Remove deletes the directory. TestMain calls it after the tests.
func (p *PostgresTemplate) Remove() { os.RemoveAll(p.dir) }

// postgresDir makes a directory that the server's user owns. It is not in a test's temporary
// directory, which only root may enter if root runs the test.
func postgresDir(t testing.TB, as *syscall.SysProcAttr) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "countd-postgres-")
	must.Do(t, err)
	if as.Credential != nil {
		must.Do(t, os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)))
	}
	return dir
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
