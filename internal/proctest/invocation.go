package proctest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// addrEnv is the variable with the addresses of the servers.
const addrEnv = "COUNTCTL_ADDR"

// Result is the exit code and the output of a command line.
type Result struct {
	Code     int
	Out, Err string
}

// Invocation runs command lines of countctl against one server, within the test process.
type Invocation struct {
	t       *testing.T
	Addr    string
	Stdin   string
	Ctx     context.Context
	program Program
}

// Program runs a command line and returns the exit code. It gets the variables of the environment from env.
type Program func(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer, env func(name string) string) int

// NewInvocation returns an invocation of a program against the server at addr.
func NewInvocation(t *testing.T, addr string, program Program) *Invocation {
	return &Invocation{t: t, Addr: addr, Ctx: t.Context(), program: program}
}

// Run runs a command line.
func (i *Invocation) Run(args ...string) Result {
	var out, err Buffer
	env := func(name string) string {
		if name == addrEnv {
			return i.Addr
		}
		return ""
	}
	code := i.program(i.Ctx, args, strings.NewReader(i.Stdin), &out, &err, env)
	return Result{code, out.String(), err.String()}
}

// OK runs a command line that must succeed and returns its output.
func (i *Invocation) OK(args ...string) string {
	i.t.Helper()
	got := i.Run(args...)
	if got.Code != 0 {
		i.t.Fatalf("countctl %s: exit %d\n%s%s", strings.Join(args, " "), got.Code, got.Out, got.Err)
	}
	return got.Out
}

// Decode decodes JSON output.
func Decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("cannot read %q: %v", text, err)
	}
	return v
}

// WriteTemp writes a file into a temporary directory of the test, and returns its path.
func WriteTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ReadAll returns the content of a file.
func ReadAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Gzipped returns text compressed with gzip.
func Gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
