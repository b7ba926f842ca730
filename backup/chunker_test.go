package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
)

// noise returns bytes that have no pattern.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0] = byte(seed)
	key[1] = byte(seed >> 8)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

func chunksOf(t rapid.TB, c cutting, in io.Reader) (all [][]byte) {
	t.Helper()
	cutter := newChunker(c, in)
	for {
		chunk, err := cutter.next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, chunk)
	}
}

// The chunks of a stream are its bytes, and have the sizes that manifests may name.
func TestChunksAreTheStream(t *testing.T) {
	c := newCutting(64, 256, 1024)
	rapid.Check(t, func(t *rapid.T) {
		text := noise(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 8<<10).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "flat") {
			clear(text)
		}
		chunks := chunksOf(t, c, iotest.OneByteReader(bytes.NewReader(text)))
		if got := bytes.Join(chunks, nil); !bytes.Equal(got, text) {
			t.Fatalf("%d bytes became %d", len(text), len(got))
		}
		for i, chunk := range chunks {
			if len(chunk) > c.max || len(chunk) < c.min && i < len(chunks)-1 {
				t.Fatalf("chunk %d of %d has %d bytes", i, len(chunks), len(chunk))
			}
		}
	})
}

// The cuts are a function of the bytes alone, and stay the same in all versions: otherwise a new version would store
// everything again.
func TestCutsStay(t *testing.T) {
	text := noise(1, 64<<20)
	chunks := chunksOf(t, usualCutting, bytes.NewReader(text))
	sizes := sha256.New()
	for _, chunk := range chunks {
		fmt.Fprintln(sizes, len(chunk))
	}
	const want = "e56b565f7e473b7b"
	if got := hex.EncodeToString(sizes.Sum(nil)[:8]); got != want {
		t.Errorf("%d chunks, whose sizes have the hash %s, want %s", len(chunks), got, want)
	}
}

// A change of a stream changes the chunks near it, even if it moves all bytes that follow.
func TestAChangeChangesFewChunks(t *testing.T) {
	text := noise(2, 32<<20)
	names := map[string]bool{}
	for _, chunk := range chunksOf(t, usualCutting, bytes.NewReader(text)) {
		names[string(chunk)] = true
	}
	at := len(text) / 3
	for name, changed := range map[string][]byte{
		"a byte is another": must.Flipped(text, at),
		"a byte is added":   bytes.Join([][]byte{text[:at], {0}, text[at:]}, nil),
		"a byte is missing": append(bytes.Clone(text[:at]), text[at+1:]...),
		"bytes at the end":  append(bytes.Clone(text), text[:100]...),
	} {
		other := 0
		for _, chunk := range chunksOf(t, usualCutting, bytes.NewReader(changed)) {
			if !names[string(chunk)] {
				other++
			}
		}
		if other < 1 || other > 3 {
			t.Errorf("%s: %d of %d chunks are new", name, other, len(names))
		}
	}
}

func TestAStreamThatFailsHasNoMoreChunks(t *testing.T) {
	broken := errors.New("broken")
	cutter := newChunker(usualCutting, io.MultiReader(bytes.NewReader(noise(3, 100)), iotest.ErrReader(broken)))
	if chunk, err := cutter.next(); !errors.Is(err, broken) {
		t.Errorf("%d bytes, %v", len(chunk), err)
	}
}

func BenchmarkCut(b *testing.B) {
	text := noise(4, 64<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		chunksOf(b, usualCutting, bytes.NewReader(text))
	}
}
