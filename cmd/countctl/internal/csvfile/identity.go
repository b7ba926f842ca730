package csvfile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Identity tells whether a file is still the one that was read before.
type Identity struct {
	Size       int64     `json:"size"` // bytes
	ModTime    time.Time `json:"mod_time"`
	HeadSHA256 string    `json:"head_sha256"` // of the first 64 KiB, in hex
}

// Same tells whether both are of one unchanged file.
func (i Identity) Same(other Identity) bool {
	return i.Size == other.Size && i.ModTime.Equal(other.ModTime) && i.HeadSHA256 == other.HeadSHA256
}

// Identify reads a file's identity. The file must be a regular one: a pipe
// cannot be read again.
func Identify(path string) (Identity, error) {
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
	if _, err := io.CopyN(sum, f, HeadBytes); err != nil && !errors.Is(err, io.EOF) {
		return Identity{}, err
	}
	return Identity{Size: info.Size(), ModTime: info.ModTime().UTC(), HeadSHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}
