package csvfile

import (
	"context"
	"io"
	"os"
)

// openSilent opens a file that may be a pipe without a writer. If ctx ends first, the
// goroutine that opens it ends with the process.
func openSilent(ctx context.Context, path string) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		f, err := os.Open(path)
		done <- result{f, err}
	}()
	select {
	case opened := <-done:
		return opened.f, opened.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Interruptible returns a reader whose Read returns ctx's error once ctx ends, even while
// r is silent. The goroutine of a Read that ctx cut off ends with that Read of r, or with
// the process; the caller reads nothing more from r.
func Interruptible(ctx context.Context, r io.Reader) io.Reader {
	return &interruptible{ctx: ctx, r: r, done: make(chan readResult, 1)}
}

type interruptible struct {
	ctx  context.Context
	r    io.Reader
	buf  []byte // owned by the goroutine that reads
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	if len(i.buf) < len(p) {
		i.buf = make([]byte, len(p))
	}
	buf := i.buf[:len(p)]
	go func() {
		n, err := i.r.Read(buf)
		i.done <- readResult{n, err}
	}()
	select {
	case result := <-i.done:
		return copy(p, buf[:result.n]), result.err
	case <-i.ctx.Done():
		return 0, i.ctx.Err()
	}
}
