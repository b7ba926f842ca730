package csvfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// Identity identifies the content of a file. Its time is not included: a copy, or a file
// that was touched, has the same rows.
type Identity struct {
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // of all bytes, in hex
}

// Same reports whether both have the same content.
func (i Identity) Same(other Identity) bool { return i == other }

// Identify returns a file's identity. It reads the whole file, because rows that are cut
// into numbered batches must be exactly the same ones. The file must be regular: a pipe
// cannot be read again. It returns early when ctx ends.
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

// identifyStep is how many bytes are read between two checks of the context.
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
