package cluster

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/countd/countd/internal/program"
)

// A small file is one JSON object and a line with a checksum:
//
//	{"format":1,"groups":[0,17]}
//	crc32c 0a1b2c3d
//
// The checksum is CRC32C, in hexadecimal, of all bytes before its line.
const (
	checksumHead      = "crc32c "
	checksumLineBytes = len(checksumHead) + 2*crc32.Size + 1
)

// castagnoli is read only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendChecksum appends the checksum line of object. object must end with a newline.
func appendChecksum(dst, object []byte) []byte {
	return fmt.Appendf(dst, "%s%08x\n", checksumHead, crc32.Checksum(object, castagnoli))
}

// cutChecksum verifies the checksum of a small file and returns its JSON object.
func cutChecksum(raw []byte) (object []byte, err error) {
	object = raw[:max(0, len(raw)-checksumLineBytes)]
	switch {
	case bytes.Equal(raw[len(object):], appendChecksum(nil, object)):
		return object, nil
	case !bytes.Contains(raw, []byte(checksumHead)):
		return nil, fmt.Errorf("it has no checksum: it is damaged, or %w", ErrUnreleased)
	}
	return nil, ErrBadChecksum
}

// readBounded returns the content of a file. If the file is longer than bytesMax, it returns
// bytesMax+1 bytes, so that the caller can refuse the file.
func readBounded(path string, bytesMax int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, bytesMax+1))
}

// readChecked returns the JSON object of the small file at path, at most bytesMax bytes.
func readChecked(path string, bytesMax int64) (object []byte, err error) {
	raw, err := readBounded(path, bytesMax+int64(checksumLineBytes))
	if err != nil {
		return nil, err
	}
	if object, err = cutChecksum(raw); err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return object, nil
}

// replaceChecked durably replaces the small file at path by object and a checksum. object ends with a newline.
func replaceChecked(path string, object []byte) error {
	return program.ReplaceFile(path, appendChecksum(bytes.Clone(object), object))
}
