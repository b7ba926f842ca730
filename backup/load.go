package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
)

// openFile returns a reader of a file in the archive.
func (a *Archive) openFile(ctx context.Context, sealedFor string, f *File) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	return &chunkReader{a: a, ctx: ctx, cancel: cancel, sealedFor: sealedFor, left: f.Chunks}
}

// chunkReader reads the chunks of a file in order, some ahead. The first Read starts that, so that readers that wait for
// their turn hold no chunks. It checks each chunk before it returns a byte of it. Each chunk has a goroutine, which ends
// once it has read the chunk or Close was called.
type chunkReader struct {
	a         *Archive
	ctx       context.Context
	cancel    context.CancelFunc
	sealedFor string        // of the manifest
	left      []Chunk       // not begun
	begun     []chan result // in order, at most workers
	now       []byte        // the rest of the chunk that Read returns
	failed    error
}

type result struct {
	plain []byte
	err   error
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.now) == 0 {
		if r.failed != nil {
			return 0, r.failed
		}
		for len(r.begun) < workers && len(r.left) > 0 {
			r.begin(r.left[0])
			r.left = r.left[1:]
		}
		if len(r.begun) == 0 {
			return 0, io.EOF
		}
		select {
		case got := <-r.begun[0]:
			r.begun = r.begun[1:]
			r.now, r.failed = got.plain, got.err
		case <-r.ctx.Done():
			r.failed = r.ctx.Err()
		}
	}
	n := copy(p, r.now)
	r.now = r.now[n:]
	return n, nil
}

func (r *chunkReader) begin(c Chunk) {
	done := make(chan result, 1)
	r.begun = append(r.begun, done)
	go func() {
		plain, err := r.a.chunk(r.ctx, r.sealedFor, c)
		done <- result{plain, err}
	}()
}

// Close implements io.Closer.
func (r *chunkReader) Close() error {
	r.cancel()
	return nil
}

// chunk returns the plain bytes of a chunk, checked. sealedFor is that of its manifest. It notes whether the chunk is
// damaged, unless it could not be read for a reason that may pass.
func (a *Archive) chunk(ctx context.Context, sealedFor string, c Chunk) ([]byte, error) {
	plain, err := a.readChunk(ctx, sealedFor, c)
	if err == nil || errors.Is(err, ErrIncomplete) {
		a.note(storedName(sealedFor, c.SHA256), err != nil)
	}
	return plain, err
}

// note notes whether a chunk is damaged, by its stored name.
func (a *Archive) note(chunk string, damaged bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !damaged {
		delete(a.mu.damaged, chunk)
		return
	}
	if a.mu.damaged == nil {
		a.mu.damaged = map[string]bool{}
	}
	a.mu.damaged[chunk] = true
}

func (a *Archive) readChunk(ctx context.Context, sealedFor string, c Chunk) ([]byte, error) {
	at := chunkPath(storedName(sealedFor, c.SHA256))
	sealed, err := a.target.Get(ctx, at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", ErrIncomplete, at)
	}
	if errors.Is(err, syscall.EIO) { // a disk lost these bytes, and may store them elsewhere
		return nil, fmt.Errorf("%w: %s is damaged: %w", ErrIncomplete, at, err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read a chunk: %w", err)
	}
	plain, err := a.sealing.open(sealed, sealedFor != "")
	if errors.Is(err, ErrSealed) || errors.Is(err, ErrNoIdentity) {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s is damaged: %w", ErrIncomplete, at, err)
	}
	if sum := sha256.Sum256(plain); hex.EncodeToString(sum[:]) != c.SHA256 || int64(len(plain)) != c.Bytes {
		return nil, fmt.Errorf("%w: %s is damaged: it holds %d bytes of SHA-256 %x", ErrIncomplete, at, len(plain), sum)
	}
	return plain, nil
}

// CheckThere returns an error unless all chunks of a backup are in the archive. It does not read them.
func (a *Archive) CheckThere(ctx context.Context, m *Manifest) error {
	there, err := a.chunks(ctx)
	if err != nil {
		return err
	}
	if name := m.missing(there); name != "" {
		return fmt.Errorf("%w: %s is missing or damaged", ErrIncomplete, chunkPath(name))
	}
	return nil
}
