package source

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// secretBytesMax bounds a file that a configuration names. A file with all public certificate
// authorities has some 200 KiB.
const secretBytesMax = 1 << 20

// Secrets reads the files that configurations name, all from one directory of the node. Anybody
// who may change a source can make a node send any file of this directory to any address.
//
// Invariant: it opens no file outside of the directory, even if file names or symbolic links lead
// out of it. It reads only regular files of at most secretBytesMax.
type Secrets struct {
	Dir string // if empty, configurations may name no files
}

// Access holds the credentials for a broker.
type Access struct {
	Password string
	TLS      *tls.Config // nil for no TLS, unless the address requires it
}

// file is a file that a configuration names.
type file struct{ field, name string }

// files returns the files that the configuration names.
func (c *Config) files() []file {
	all := []file{{"password-file", c.PasswordFile}}
	if c.TLS != nil {
		all = append(all, file{"tls.ca-file", c.TLS.CAFile}, file{"tls.cert-file", c.TLS.CertFile}, file{"tls.key-file", c.TLS.KeyFile})
	}
	named := all[:0]
	for _, f := range all {
		if f.name != "" {
			named = append(named, f)
		}
	}
	return named
}

// Check returns a *ConfigError if a configuration names a file although Dir is empty.
func (s Secrets) Check(c *Config) error {
	if files := c.files(); s.Dir == "" && len(files) > 0 {
		return bad(files[0].field, "the node has no directory for the files of sources: start each node with --source-secrets-dir")
	}
	return nil
}

// Access reads the files that a configuration names.
func (s Secrets) Access(c *Config) (Access, error) {
	var a Access
	if err := s.Check(c); err != nil {
		return a, err
	}
	contents := map[string][]byte{}
	for _, f := range c.files() {
		text, err := s.read(f.name)
		if err != nil {
			return a, fmt.Errorf("cannot read %s: %w", f.field, err)
		}
		contents[f.field] = text
	}
	a.Password = strings.TrimRight(string(contents["password-file"]), "\r\n")
	if c.TLS == nil {
		return a, nil
	}
	a.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLS.CAFile != "" {
		a.TLS.RootCAs = x509.NewCertPool()
		if !a.TLS.RootCAs.AppendCertsFromPEM(contents["tls.ca-file"]) {
			return a, fmt.Errorf("tls.ca-file %s has no certificate", c.TLS.CAFile)
		}
	}
	if c.TLS.CertFile != "" {
		pair, err := tls.X509KeyPair(contents["tls.cert-file"], contents["tls.key-file"])
		if err != nil {
			return a, fmt.Errorf("cannot read tls.cert-file and tls.key-file: %w", err)
		}
		a.TLS.Certificates = []tls.Certificate{pair}
	}
	return a, nil
}

// read returns the contents of a file in the directory.
func (s Secrets) read(name string) ([]byte, error) {
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory of --source-secrets-dir: %w", err)
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without O_NONBLOCK, opening a pipe without a writer would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	of, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !of.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, secretBytesMax+1))
	if err == nil && len(text) > secretBytesMax {
		err = fmt.Errorf("%s is over %d bytes", name, secretBytesMax)
	}
	return text, err
}

// State returns a text that changes whenever a file named by the configuration changes.
func (s Secrets) State(c *Config) string {
	files := c.files()
	if len(files) == 0 {
		return ""
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err.Error()
	}
	defer root.Close()
	var state strings.Builder
	for _, f := range files {
		if of, err := root.Stat(f.name); err != nil {
			fmt.Fprintln(&state, err)
		} else {
			fmt.Fprintln(&state, f.name, of.ModTime().UnixNano(), of.Size())
		}
	}
	return state.String()
}
