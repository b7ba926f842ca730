package backup

import (
	"bytes"
	"errors"
	"io"
	"math"
)

// Sizes of chunks. Smaller chunks store less after a change: a shard of millions of rows has a few MB, and each change
// stores the chunk around it again, and the chunks at both ends. Larger ones need fewer operations of the target and a
// shorter manifest. With these, a manifest has about 400 bytes for each MiB.
const (
	chunkBytesMin  = 64 << 10
	chunkBytesMean = 256 << 10 // of random bytes
	chunkBytesMax  = 1 << 20
)

// cutting says where a stream is cut.
type cutting struct {
	min, max int    // bytes of a chunk; min is at least gearBytes
	below    uint64 // a chunk ends where the hash is below this
}

// usualCutting is that of all archives. Tests cut smaller chunks.
var usualCutting = newCutting(chunkBytesMin, chunkBytesMean, chunkBytesMax)

func newCutting(least, mean, most int) cutting {
	return cutting{least, most, math.MaxUint64 / uint64(mean-least)}
}

// gearBytes is the number of bytes on which the hash depends: each byte shifts the hash by a bit.
const gearBytes = 64

// gear has a number without pattern for each byte. A program with other numbers cuts elsewhere, and shares no
// chunks with earlier backups.
var gear = func() (table [256]uint64) {
	state := uint64(0)
	for i := range table { // splitmix64
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		table[i] = z ^ z>>31
	}
	return table
}()

// chunker cuts a stream into chunks.
type chunker struct {
	cutting
	in    io.Reader
	buf   []byte // of max bytes
	n     int    // bytes in buf
	ended bool
}

func newChunker(c cutting, in io.Reader) *chunker {
	return &chunker{cutting: c, in: in, buf: make([]byte, c.max)}
}

// next returns the next chunk, which the caller owns, or io.EOF.
func (c *chunker) next() ([]byte, error) {
	for !c.ended && c.n < len(c.buf) {
		n, err := c.in.Read(c.buf[c.n:])
		c.n += n
		if errors.Is(err, io.EOF) {
			c.ended = true
		} else if err != nil {
			return nil, err
		}
	}
	if c.n == 0 {
		return nil, io.EOF
	}
	at := c.cut(c.buf[:c.n])
	chunk := bytes.Clone(c.buf[:at])
	c.n = copy(c.buf, c.buf[at:c.n])
	return chunk, nil
}

// cut returns the length of the first chunk of b, which has max bytes or ends with the stream.
func (c cutting) cut(b []byte) int {
	if len(b) <= c.min {
		return len(b)
	}
	hash := uint64(0)
	for _, x := range b[c.min-gearBytes : c.min] {
		hash = hash<<1 + gear[x]
	}
	for i, x := range b[c.min:] {
		hash = hash<<1 + gear[x]
		if hash < c.below {
			return c.min + i + 1
		}
	}
	return len(b)
}
