package source

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

const withFile = "name: a\ntype: redis-stream\naddr: h:1\nkey: k\npassword-file: "

// TestSecrets: for the files that a configuration names, Secrets
//
//  1. opens no file outside of the directory, even if the name or symbolic links lead out of it;
//  2. refuses large files and files that are not regular, without waiting;
//  3. reads all other files, also through symbolic links within the directory.
func TestSecrets(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const secret = "root-token-of-the-node"
	write(filepath.Join(outside, "root-token"), secret)
	if err := os.MkdirAll(filepath.Join(dir, "..data"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "..data", "password"), "right\r\n")
	link("..data/password", "password") // Kubernetes mounts a secret in this way
	link(filepath.Join(outside, "root-token"), "absolute")
	link(filepath.Join("..", filepath.Base(outside), "root-token"), "relative")
	link(outside, "directory")
	link("/dev/zero", "device")
	write(filepath.Join(dir, "huge"), "")
	if err := os.Truncate(filepath.Join(dir, "huge"), 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	devices := map[string]string{}
	if syscall.Mknod(filepath.Join(dir, "zero"), syscall.S_IFCHR|0o600, 1<<8|5) == nil { // only root may create a device
		devices["zero"] = "not a regular file"
	}
	read := func(name string) (string, error) {
		t.Helper()
		cfg, err := ParseConfig([]byte(withFile + name))
		if err != nil {
			return "", err
		}
		type result struct {
			access Access
			err    error
		}
		done := make(chan result, 1)
		go func() {
			_ = Secrets{Dir: dir}.State(cfg)
			access, err := Secrets{Dir: dir}.Access(cfg)
			done <- result{access, err}
		}()
		select {
		case of := <-done:
			return of.access.Password, of.err
		case <-time.After(must.BecomeMax):
			t.Fatalf("%s: it waits", name)
		}
		return "", nil
	}
	for name, reason := range map[string]string{
		filepath.Join(outside, "root-token"):                            "password-file: not a path within the directory of --source-secrets-dir",
		filepath.Join("..", filepath.Base(outside), "root-token"):       "password-file: not a path within the directory of --source-secrets-dir",
		filepath.Join("x", "..", "..", filepath.Base(outside), "token"): "password-file: not a path within",
		"absolute":             "cannot read password-file: ",
		"relative":             "cannot read password-file: ",
		"directory/root-token": "cannot read password-file: ",
		"device":               "cannot read password-file: ",
		"huge":                 "huge is over 1048576 bytes",
		"pipe":                 "pipe is not a regular file",
		"..data":               "..data is not a regular file",
		"missing":              "cannot read password-file: ",
	} {
		devices[name] = reason
	}
	for name, reason := range devices {
		password, err := read(name)
		if err == nil || !strings.Contains(err.Error(), reason) || password != "" {
			t.Errorf("%s: %q, %v; want %s", name, password, err, reason)
		}
	}
	if password, err := read("password"); err != nil || password != "right" {
		t.Errorf("password: %q, %v", password, err)
	}
}

// TestNoSecrets: a node without a directory for files refuses a configuration that names one. The
// error names the flag for the directory.
func TestNoSecrets(t *testing.T) {
	for fields, field := range map[string]string{
		withFile + "f": "password-file",
		"name: a\ntype: redis-stream\naddr: h:1\nkey: k\ntls: {ca-file: f}":                "tls.ca-file",
		"name: a\ntype: redis-stream\naddr: h:1\nkey: k\ntls: {cert-file: f, key-file: g}": "tls.cert-file",
	} {
		cfg, err := ParseConfig([]byte(fields))
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{Secrets{}.Check(cfg), func() error { _, err := Secrets{}.Access(cfg); return err }()} {
			if err == nil || !strings.HasPrefix(err.Error(), field+": ") || !strings.Contains(err.Error(), "--source-secrets-dir") {
				t.Errorf("%s: %v", fields, err)
			}
		}
	}
	cfg, err := ParseConfig([]byte("name: a\ntype: redis-stream\naddr: h:1\nkey: k\ntls: {}"))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := (Secrets{}).Access(cfg); err != nil || a.TLS == nil {
		t.Errorf("TLS without a file: %+v, %v", a, err)
	}
}

// TestAddressesOfTheNode: no address may name a file or a socket of the node.
func TestAddressesOfTheNode(t *testing.T) {
	const pg = "name: a\ntype: postgres\nslot: s\npublication: p\nprefix: x\ndsn: "
	for text, reason := range map[string]string{
		pg + "'postgres://h/d?sslkey=/k&sslcert=/c'":                        "dsn: sslkey names a file of the node",
		pg + "'postgres://h/d?passfile=/f'":                                 "dsn: passfile names a file of the node",
		pg + "'postgres://h/d?pass%66ile=/f'":                               "dsn: passfile names a file of the node",
		pg + "host=h sslrootcert = /f":                                      "dsn: sslrootcert names a file of the node",
		pg + "service=s servicefile=/f":                                     "dsn: service names a file of the node",
		"name: a\ntype: redis-stream\nkey: k\naddr: unix:///run/redis.sock": "addr: a socket of the node",
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), reason) {
			t.Errorf("%s: %v; want %s", text, err, reason)
		}
	}
}
