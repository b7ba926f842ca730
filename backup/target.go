package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/countd/countd/internal/program"
)

// Target is where an archive is. Names are slash-separated paths without dots. All methods may be called
// concurrently. DESIGN.md says what a target promises.
type Target interface {
	// Put stores body under a name, whole or not at all, and replaces what was there. It is durable when Put returns.
	Put(ctx context.Context, name string, body []byte) error
	// Get returns an error that wraps fs.ErrNotExist if there is nothing under the name. It reads nothing that checkSize
	// refuses.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns all names that begin with prefix, which is empty or ends with a slash, ascending.
	List(ctx context.Context, prefix string) ([]string, error)
	// Delete returns no error if there is nothing under the name.
	Delete(ctx context.Context, name string) error
}

// errUnanswered is returned by Put and Delete if it is unknown whether they take effect, now or later.
var errUnanswered = errors.New("the store gave no answer, so that this may still be done")

// OpenTarget opens the target at a place: the path of a directory, or the URL of a bucket. It reads and sends nothing.
func OpenTarget(_ context.Context, place string) (Target, error) {
	switch scheme, _, isURL := strings.Cut(place, "://"); {
	case isURL && scheme == bucketScheme:
		return openBucket(place)
	case isURL:
		return nil, fmt.Errorf("cannot open an archive at %s://: give a directory, or %s", scheme, bucketForm)
	case place == "":
		return nil, errors.New("the place of the archive is empty: give a directory, or " + bucketForm)
	}
	return Directory(place), nil
}

// Directory is a Target in a directory, which it creates with its first Put.
type Directory string

var _ Target = Directory("")

func (d Directory) path(name string) string {
	return filepath.Join(string(d), filepath.FromSlash(name))
}

// Put implements Target.
func (d Directory) Put(ctx context.Context, name string, body []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	to := d.path(name)
	if err := program.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	f, err := program.CreateFile(to)
	if err != nil {
		return err
	}
	defer f.Abort() // does nothing after Commit
	if _, err := f.Write(body); err != nil {
		return err
	}
	return f.Commit()
}

// Get implements Target.
func (d Directory) Get(ctx context.Context, name string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at := d.path(name)
	info, err := os.Stat(at)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return nil, fmt.Errorf("%w: %s is no file", ErrIncomplete, name)
	}
	if err := checkSize(name, info.Size()); err != nil {
		return nil, err
	}
	return os.ReadFile(at)
}

// List implements Target. It also returns the temporary files that killed calls of Put left.
func (d Directory) List(ctx context.Context, prefix string) (names []string, err error) {
	root, err := filepath.EvalSymlinks(d.path(prefix)) // WalkDir does not follow a root that is a link
	if errors.Is(err, fs.ErrNotExist) {                // nothing yet
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(at string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another run has just deleted it
			return nil
		case prefix == "" && at == filepath.Join(root, "lost+found"): // of a file system's root, which only root can read
			return fs.SkipDir
		case err != nil || e.IsDir():
			return errors.Join(err, ctx.Err())
		}
		below, err := filepath.Rel(root, at)
		names = append(names, prefix+filepath.ToSlash(below))
		return err
	})
	slices.Sort(names)
	return names, err
}

// Delete implements Target. The directories stay.
func (d Directory) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = program.SyncDir(filepath.Dir(d.path(name)))
	}
	return err
}

// isTemporary reports whether a name is that of a temporary file of Directory.Put.
func isTemporary(name string) bool {
	return strings.HasPrefix(path.Base(name), ".") && strings.HasSuffix(name, ".tmp")
}
