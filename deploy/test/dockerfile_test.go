package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// image is the result of the last stage of the Dockerfile.
type image struct {
	root       string // directory of its files
	env        []string
	user       string
	entrypoint []string
	health     []string
	stopSignal string
	volumes    []string
	labels     map[string]string
}

// parse reads the Dockerfile as BuildKit does. A warning of BuildKit's linter fails the test.
func parse(t *testing.T) (stages []instructions.Stage, lex *shell.Lex) {
	t.Helper()
	file, err := os.Open(repository + "/deploy/image/Dockerfile")
	do(t, err)
	defer file.Close()
	parsed, err := parser.Parse(file)
	do(t, err)
	for _, w := range parsed.Warnings {
		t.Error(w.Short)
	}
	stages, _, err = instructions.Parse(parsed.AST, linter.New(&linter.Config{
		Warn: func(rule, _, _, text string, at []parser.Range) { t.Errorf("%s: %s %v", rule, text, at) },
	}))
	do(t, err)
	if len(stages) != 2 {
		t.Fatalf("%d stages", len(stages))
	}
	return stages, shell.NewLex(parsed.EscapeToken)
}

// stage is a stage under construction.
type stage struct {
	root string
	env  []string // ENV and ARG
	dir  string   // WORKDIR
	image
}

// build follows the Dockerfile. An overlay of this machine's files replaces the golang image. This
// machine's module and build caches replace the engine's caches.
func build(t *testing.T, args ...string) *image {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("it needs root: for mounts, chroot and another user")
	}
	for _, program := range []string{"unshare", "nsenter", "setpriv", "chroot", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s (Debian: util-linux, and iproute2 for ip) is not installed; .ci/run installs it", program)
		}
	}
	stages, lex := parse(t)
	args = append(args, "BUILDPLATFORM=linux/"+runtime.GOARCH, "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH)
	roots := map[string]string{}
	var last *stage
	for _, s := range stages {
		last = &stage{root: t.TempDir(), dir: "/", image: image{labels: map[string]string{}}}
		switch {
		case s.BaseName == "scratch":
		case s.BaseName == "golang:"+goVersion(t):
			last.root = overlay(t)
		default:
			t.Fatalf("FROM %s; go.mod has %s", s.BaseName, goVersion(t))
		}
		roots[s.Name] = last.root
		for _, c := range s.Commands {
			if e, can := c.(instructions.SupportsSingleWordExpansion); can {
				do(t, e.Expand(func(word string) (string, error) {
					expanded, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(last.env))
					return expanded, err
				}))
			}
			last.step(t, c, args, roots)
		}
	}
	last.image.root = last.root
	return &last.image
}

// goVersion returns the version of Go in go.mod, such as 1.26.
func goVersion(t *testing.T) string {
	out, err := exec.Command("go", "list", "-C", repository, "-m", "-f", "{{.GoVersion}}").Output()
	do(t, err)
	parts := strings.SplitN(strings.TrimSpace(string(out)), ".", 3)
	return strings.Join(parts[:2], ".")
}

// overlay returns a directory with this machine's files. Changes below the directory disappear when
// the test ends.
func overlay(t *testing.T) string {
	dir := t.TempDir()
	mount := func(source, target, kind string, flags uintptr, options string) {
		t.Helper()
		do(t, os.MkdirAll(target, 0o755))
		if err := syscall.Mount(source, target, kind, flags, options); err != nil {
			t.Fatalf("cannot mount %s: %v", target, err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) })
	}
	mount("tmpfs", dir, "tmpfs", 0, "")
	for _, name := range []string{"up", "work"} {
		do(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	root := filepath.Join(dir, "root")
	mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+dir+"/up,workdir="+dir+"/work")
	mount("/dev", root+"/dev", "", syscall.MS_BIND|syscall.MS_REC, "")
	mount("proc", root+"/proc", "proc", 0, "")
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		out, err := exec.Command("go", "env", name).Output()
		do(t, err)
		cache := strings.TrimSpace(string(out))
		do(t, os.MkdirAll(cache, 0o755))
		mount(cache, root+cache, "", syscall.MS_BIND, "")
	}
	return root
}

// step carries out one instruction. args are the arguments of the build.
func (s *stage) step(t *testing.T, command instructions.Command, args []string, roots map[string]string) {
	t.Helper()
	switch c := command.(type) {
	case *instructions.ArgCommand:
		for _, a := range c.Args {
			for _, given := range args {
				if strings.HasPrefix(given, a.Key+"=") {
					s.env = append(s.env, given)
				}
			}
		}
	case *instructions.EnvCommand:
		for _, e := range c.Env {
			s.env, s.image.env = append(s.env, e.Key+"="+e.Value), append(s.image.env, e.Key+"="+e.Value)
		}
	case *instructions.WorkdirCommand:
		s.dir = c.Path
		do(t, os.MkdirAll(s.root+s.dir, 0o755))
	case *instructions.RunCommand:
		run := exec.Command("/bin/sh", "-c", strings.Join(c.CmdLine, " "))
		run.Dir, run.Env = s.dir, append(os.Environ(), s.env...)
		run.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root}
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c.CmdLine, err, out)
		}
	case *instructions.CopyCommand:
		from := roots[c.From]
		if c.From == "" {
			from = contextDir(t)
		}
		for _, source := range c.SourcePaths {
			s.copy(t, filepath.Join(from, source), s.path(c.DestPath), c.Chown)
		}
	case *instructions.LabelCommand:
		for _, l := range c.Labels {
			s.labels[l.Key] = l.Value
		}
	case *instructions.VolumeCommand:
		s.volumes = append(s.volumes, c.Volumes...)
	case *instructions.UserCommand:
		s.user = c.User
	case *instructions.StopSignalCommand:
		s.stopSignal = c.Signal
	case *instructions.ExposeCommand:
	case *instructions.HealthCheckCommand:
		s.health = c.Health.Test
	case *instructions.EntrypointCommand:
		if c.PrependShell {
			t.Error("ENTRYPOINT is not in the exec form, and the image has no shell")
		}
		s.entrypoint = c.CmdLine
	default:
		t.Fatalf("the test does not know %s", command.Name())
	}
}

// path returns a path of the stage without a relative part.
func (s *stage) path(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(s.dir, path)
}

// copy copies a file, or the contents of a directory, into the directory target.
func (s *stage) copy(t *testing.T, source, target, chown string) {
	t.Helper()
	if info, err := os.Stat(source); err == nil && info.IsDir() {
		source += "/."
	}
	staged := t.TempDir()
	run(t, "cp", "-r", "--preserve=mode,links", source, staged)
	if chown != "" {
		run(t, "chown", "-R", chown, staged)
	}
	do(t, os.MkdirAll(s.root+target, 0o755))
	run(t, "cp", "-r", "--preserve=mode,links,ownership", staged+"/.", s.root+target)
	do(t, os.Chown(s.root+target, 0, 0))
	do(t, os.Chmod(s.root+target, 0o755))
}

// contextDir returns a copy of the build context: the files that an engine would receive.
func contextDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "sh", "-c", `cd "$1" && git ls-files -co --exclude-standard -z | xargs -0 cp --parents -t "$2"`, "sh", repository, dir)
	return dir
}

// run runs a program of this machine.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}
