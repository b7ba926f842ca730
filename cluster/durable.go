package cluster

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/countd/countd/internal/atomicfile"
)

// A small file is one JSON object and a line of white space behind it, which holds a
// checksum:
//
//	┌─────────────┬──────────────────────────────────────────┬────┐
//	│ object "\n" │ CRC32C of that, a bit a byte, the highest │"\n"│
//	│             │ first: a tab for 1, a space for 0         │    │
//	└─────────────┴──────────────────────────────────────────┴────┘
//
// Programs of cluster version 4 and older refuse a field that they do not know, and
// skip white space: a node may go back to them. Their files end with the object.
const (
	checksumBits      = 32
	checksumLineBytes = checksumBits + 1
	// plainTailBytesMax bounds the bytes after the object in a file without a checksum: the
	// end of a line.
	plainTailBytesMax = 2
)

// castagnoli is read only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendChecksumLine appends the line that follows object, which ends with its newline.
func appendChecksumLine(dst, object []byte) []byte {
	sum := crc32.Checksum(object, castagnoli)
	for bit := checksumBits - 1; bit >= 0; bit-- {
		if sum>>bit&1 == 1 {
			dst = append(dst, '\t')
		} else {
			dst = append(dst, ' ')
		}
	}
	return append(dst, '\n')
}

// cutChecksumLine returns the object of a small file, and whether a checksum was there
// to compare it with.
func cutChecksumLine(raw []byte) (object []byte, checked bool, err error) {
	tail := raw[bytes.LastIndexByte(raw, '}')+1:]
	if len(tail) <= plainTailBytesMax || len(bytes.TrimSpace(tail)) > 0 {
		return raw, false, nil // more text after the object: not JSON
	}
	object = raw[:max(0, len(raw)-checksumLineBytes)]
	if !bytes.Equal(raw[len(object):], appendChecksumLine(nil, object)) {
		return nil, false, ErrBadChecksum
	}
	return object, true, nil
}

// readBounded returns the content of a file, and of a longer one than bytesMax
// just so much that it can be seen to be too long.
func readBounded(path string, bytesMax int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, bytesMax+1))
}

// readChecked returns the object of the small file at path, and whether it had a checksum.
// If the object is longer than bytesMax, the result is just long enough to show that.
func readChecked(path string, bytesMax int64) (object []byte, checked bool, err error) {
	raw, err := readBounded(path, bytesMax+checksumLineBytes)
	if err != nil {
		return nil, false, err
	}
	if object, checked, err = cutChecksumLine(raw); err != nil {
		return nil, false, fmt.Errorf("%q: %w", path, err)
	}
	return object, checked, nil
}

// replaceChecked durably replaces the small file at path by object, which ends with its
// newline, and a checksum.
func replaceChecked(path string, object []byte) error {
	return atomicfile.Replace(path, appendChecksumLine(bytes.Clone(object), object))
}
