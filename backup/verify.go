package backup

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Verifier reads the chunks of backups, each chunk once even if several backups have it. Its methods must not be called
// concurrently.
type Verifier struct {
	a  *Archive
	mu struct {
		sync.Mutex
		read map[string]error // what is wrong with a chunk, by name
	}
}

// Verifier returns a Verifier that has read nothing.
func (a *Archive) Verifier() *Verifier {
	v := &Verifier{a: a}
	v.mu.read = map[string]error{}
	return v
}

// Verify returns an error unless all bytes of a backup are as they were written. It reads on past damage, and stops at an
// error that says nothing about the chunk. read is the number of chunks that it had to read.
func (v *Verifier) Verify(ctx context.Context, m *Manifest) (read int, err error) {
	todo := map[string]Chunk{}
	for c := range m.eachChunk {
		name := storedName(m.SealedFor, c.SHA256)
		if _, done := v.mu.read[name]; !done {
			todo[name] = c
		}
	}
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for name, c := range todo {
		if running.Err() != nil {
			break
		}
		group.Go(func() error {
			_, err := v.a.chunk(running, m.SealedFor, c)
			if err != nil && !errors.Is(err, ErrIncomplete) {
				return err
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			v.mu.read[name] = err
			return nil
		})
	}
	if err := cmp.Or(group.Wait(), ctx.Err()); err != nil {
		return len(todo), err
	}
	for name := range m.chunks {
		if err := v.mu.read[name]; err != nil {
			return len(todo), err
		}
	}
	return len(todo), nil
}
