package bulk

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/gzip"
)

// ErrNotRegular is returned for a named pipe, a device or a directory. The reader needs a regular
// file, because it reads the file twice.
var ErrNotRegular = errors.New("not a regular file")

// errDamaged is returned for a gzip file that is cut off, or whose checksum is wrong.
var errDamaged = errors.New("the gzip file is cut off or damaged")

// ErrChanged is returned for a file that was written to while it was read.
var ErrChanged = errors.New("the file was changed while it was read")

// Identity identifies the content of a file. It has no modification time, because a copy of the
// file has another time but the same rows.
type Identity struct {
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // SHA-256 of all bytes, in hex
}

// Identify returns a file's identity. It reads the whole file, because a resumed import must cut
// exactly the same rows into numbered batches. If the file is gzipped, it also unpacks the file to
// the end, and returns errDamaged if that fails. It returns early when ctx ends.
func Identify(ctx context.Context, path string) (Identity, error) {
	f, err := openRegular(path)
	if err != nil {
		return Identity{}, err
	}
	defer f.Close()
	return identify(ctx, f)
}

// openRegular opens a regular file. It returns ErrNotRegular for any other, because opening a pipe
// without a writer would block.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %w but %s", path, ErrNotRegular, kindOf(info.Mode()))
	}
	return os.Open(path)
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	}
	return "a device"
}

func identify(ctx context.Context, f *os.File) (Identity, error) {
	sum := sha256.New()
	counted := &countingReader{r: io.TeeReader(untilDone{ctx, f}, sum)}
	in := bufio.NewReaderSize(counted, identifyStep)
	if isGzip(in) {
		unzipped, err := gzip.NewReader(in)
		if err == nil {
			_, err = io.Copy(io.Discard, unzipped)
		}
		if err != nil && ctx.Err() != nil {
			return Identity{}, ctx.Err()
		}
		if err != nil {
			return Identity{}, fmt.Errorf("cannot read %s: %w near byte %d: %w; fetch it again", f.Name(), errDamaged, counted.n.Load(), err)
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return Identity{}, err
	}
	return Identity{Size: counted.n.Load(), SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

func isGzip(in *bufio.Reader) bool {
	magic, _ := in.Peek(2)
	return bytes.Equal(magic, []byte{0x1f, 0x8b})
}

// identifyStep bounds the bytes that identify reads between two checks of the context.
const identifyStep = 1 << 20

// untilDone is a reader of file. Its Read returns the error of ctx once ctx has ended.
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
