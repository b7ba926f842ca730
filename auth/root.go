package auth

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	// RootName is the name of the holder of the root token. No user has it.
	RootName = "root"
	// RootTokenBytesMin is the least length of a root token.
	RootTokenBytesMin = 32
)

// rootToken is the token in a file of this node, whose holder is an admin on this node. It is
// in no catalog, so it works while a cluster has no users and while no leader can be reached.
type rootToken struct {
	path   string // "" for none
	caller atomic.Pointer[Caller]

	// The file as it was read last. Only load uses them, which is called by one goroutine at
	// a time.
	size     int64
	modified time.Time
}

// load reads the file, if it has changed. A file that is gone means that there is no root
// token any more; one that cannot be used leaves the token as it was.
func (r *rootToken) load(logger *slog.Logger) error {
	if r.path == "" {
		return nil
	}
	info, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) && r.caller.Swap(nil) != nil {
		r.size, r.modified = 0, time.Time{}
		logger.Warn("the file of the root token is gone: there is no root token any more", "file", r.path)
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() == r.size && info.ModTime().Equal(r.modified) {
		return nil
	}
	token, err := readToken(r.path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		logger.Warn("others than its owner may read the file of the root token", "file", r.path, "mode", info.Mode().Perm().String())
	}
	r.size, r.modified = info.Size(), info.ModTime()
	again := r.caller.Swap(&Caller{Name: RootName, hash: sha256.Sum256(token), rights: rootRights})
	if again != nil {
		logger.Info("read the root token again", "file", r.path)
	}
	return nil
}

// readToken reads a token from a file, without the white space around it.
func readToken(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*tokenBytesMax))
	if err != nil {
		return nil, err
	}
	token := bytes.TrimSpace(text)
	if len(token) < RootTokenBytesMin || len(token) > tokenBytesMax {
		return nil, fmt.Errorf("%s has a token of %d bytes, not %d to %d", path, len(token), RootTokenBytesMin, tokenBytesMax)
	}
	for _, b := range token {
		if b <= ' ' || b > '~' {
			return nil, fmt.Errorf("%s has more than one token, or one of other characters than those of printable ASCII", path)
		}
	}
	return token, nil
}
