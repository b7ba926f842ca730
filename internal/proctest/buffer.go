package proctest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Buffer is a buffer that a process or a logger writes while a test reads.
type Buffer struct {
	mu struct {
		sync.Mutex
		bytes.Buffer
	}
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.Buffer.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.Buffer.String()
}

// Has reports whether text was written.
func (b *Buffer) Has(text string) bool { return strings.Contains(b.String(), text) }

// Logger returns a logger that writes text lines to the buffer.
func (b *Buffer) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }
