package cold

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// read returns a verified block, from the cache or by a worker from disk, by the
// end of ctx. It is not to be changed.
func (s *Store) read(ctx context.Context, key blockKey) ([]byte, error) {
	if b, ok := s.cache.GetIfPresent(key); ok {
		s.stats.hits.Add(1)
		return b, nil
	}
	if s.waiting.Add(1) > waitingMax {
		s.waiting.Add(-1)
		s.stats.refused.Add(1)
		return nil, ErrBusy
	}
	defer s.waiting.Add(-1)
	flight := s.flights.DoChan(key.flight(), func() (any, error) {
		s.readers <- struct{}{}
		defer func() { <-s.readers }()
		return s.readNow(key)
	})
	select {
	case r := <-flight:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]byte), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot read cold rows in time: %w", ctx.Err())
	}
}

func (k blockKey) flight() string {
	return strconv.FormatUint(uint64(k.group), 36) + "." + strconv.FormatUint(k.generation, 36) + "." + strconv.FormatUint(uint64(k.block), 36)
}

// readNow is read in the caller's own goroutine, for as long as the disk takes.
func (s *Store) readNow(key blockKey) ([]byte, error) {
	if b, ok := s.cache.GetIfPresent(key); ok {
		s.stats.hits.Add(1)
		return b, nil
	}
	b, err := s.fetch(key)
	if err == nil {
		s.cache.Set(key, b)
	}
	return b, err
}

// fetch reads a block from disk, past the cache, and verifies it. A block that is
// missing or cannot be read back is damaged: the disk has lost what it had.
func (s *Store) fetch(key blockKey) ([]byte, error) {
	done, err := s.use()
	if err != nil {
		return nil, err
	}
	defer done()
	began := time.Now()
	name := key.encode()
	value, closer, err := s.db.Get(name)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("%w: block %d of generation %d of group %d is missing", ErrDamaged, key.block, key.generation, key.group)
	}
	if err != nil {
		s.stats.damaged.Add(1)
		return nil, fmt.Errorf("%w: block %d of generation %d of group %d: %w", ErrDamaged, key.block, key.generation, key.group, err)
	}
	b := append(make([]byte, 0, len(value)), value...)
	if err := closer.Close(); err != nil {
		return nil, err
	}
	s.stats.misses.Add(1)
	s.stats.readNanos.Add(uint64(time.Since(began)))
	if _, err := openBlock(name, b); err != nil {
		s.stats.damaged.Add(1)
		return nil, fmt.Errorf("block %d of generation %d of group %d: %w", key.block, key.generation, key.group, err)
	}
	return b, nil
}
