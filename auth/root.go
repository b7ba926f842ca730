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
	"strings"
	"sync/atomic"
)

const (
	// RootName is the name of the holder of the root token. No user has it.
	RootName = "root"
	// RootTokenBytesMin is the least length of a root token.
	RootTokenBytesMin = 32
)

// rootToken is the token in a file of this node. Its holder is an admin on this node. The token is
// in no catalog, so it works without users and without a reachable leader.
type rootToken struct {
	path   string // "" for none
	caller atomic.Pointer[Caller]
	// text is the token of caller. Only the method load changes text, and only one goroutine at a
	// time calls load.
	text atomic.Pointer[string]
}

// load reads the file. If the file is gone, there is no root token any more. If the file is
// unusable, the token stays as it was.
func (r *rootToken) load(logger *slog.Logger) error {
	if r.path == "" {
		return nil
	}
	token, err := readToken(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		if r.caller.Swap(nil) != nil {
			logger.Warn("the root token file is gone; no root token is valid now", "file", r.path)
		}
		return nil
	}
	if err != nil {
		return err
	}
	before := r.text.Load()
	if r.caller.Load() != nil && *before == string(token) {
		return nil
	}
	if info, err := os.Stat(r.path); err == nil && info.Mode().Perm()&0o077 != 0 {
		logger.Warn("users other than its owner can read the root token file", "file", r.path, "mode", info.Mode().Perm().String())
	}
	text := string(token)
	r.text.Store(&text)
	r.caller.Store(&Caller{Name: RootName, hash: sha256.Sum256(token), rights: rootRights})
	if before != nil {
		logger.Info("read the changed root token", "file", r.path)
	}
	return nil
}

// mask returns text without the token.
func (r *rootToken) mask(text string) string {
	if token := r.text.Load(); token != nil {
		return strings.ReplaceAll(text, *token, "…")
	}
	return text
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
