package csvfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// Identity tells whether a file still holds what was read before. Its time is no
// part of it: a copy, or a file that was touched, has the same rows.
type Identity struct {
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // of all of them, in hex
}

// Same tells whether both are of one content.
func (i Identity) Same(other Identity) bool { return i == other }

// Identify reads a file's identity, which takes a read of the whole file: rows that
// are cut into numbered batches must be the same ones to the last. The file must be a
// regular one: a pipe cannot be read again. It returns early when ctx ends.
func Identify(ctx context.Context, path string) (Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return Identity{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Identity{}, err
	}
	if !info.Mode().IsRegular() {
		return Identity{}, fmt.Errorf("%s is not a regular file", path)
	}
	sum := sha256.New()
	size, err := io.CopyBuffer(sum, untilDone{ctx, f}, make([]byte, identifyStep))
	if err != nil {
		return Identity{}, err
	}
	return Identity{Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// identifyStep is how many bytes are read between two looks at the context.
const identifyStep = 1 << 20

// untilDone reads until its context ends. It hides the file's own ways to copy.
type untilDone struct {
	ctx  context.Context
	file io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.file.Read(p)
}
