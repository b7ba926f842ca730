package cold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// errGivenUp is returned for a read whose context ends before its turn.
var errGivenUp = errors.New("a read of cold rows was abandoned")

// read returns a verified block from the cache, or waits for its turn and reads the block from
// disk. It waits until ctx ends. The caller must not change the block.
func (s *Store) read(ctx context.Context, key blockKey) ([]byte, error) {
	if b, ok := s.cache.GetIfPresent(key); ok {
		s.stats.hits.Add(1)
		return b, nil
	}
	began := time.Now()
	b, err := s.shared(ctx, key.flight(), func() ([]byte, error) { return s.readNow(key) })
	if err == nil || errors.Is(err, ErrDamaged) { // neither refused nor timed out
		s.stats.reads.add(time.Since(began))
	}
	return b, err
}

// shared calls read once for all concurrent callers with the same name. Each waits for the result
// until its ctx ends.
func (s *Store) shared(ctx context.Context, name string, read func() ([]byte, error)) ([]byte, error) {
	if s.waiting.Add(1) > waitingMax {
		s.waiting.Add(-1)
		s.stats.refused.Add(1)
		return nil, ErrBusy
	}
	defer s.waiting.Add(-1)
	for ctx.Err() == nil {
		flight := s.flights.DoChan(name, func() (any, error) { return s.inTurn(ctx, read) })
		select {
		case r := <-flight:
			if errors.Is(r.Err, errGivenUp) {
				continue // the first caller gave up: read again
			}
			if r.Err != nil {
				return nil, r.Err
			}
			return r.Val.([]byte), nil
		case <-ctx.Done():
		}
	}
	return nil, fmt.Errorf("cannot read cold rows in time: %w", ctx.Err())
}

// inTurn calls read once it is its turn. It gives up when ctx ends, so that abandoned reads do not
// pile up on a disk that hangs.
func (s *Store) inTurn(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	select {
	case s.readers <- struct{}{}:
	case <-ctx.Done():
		return nil, errGivenUp
	}
	defer func() { <-s.readers }()
	return read()
}

func (k blockKey) flight() string {
	return strconv.FormatUint(uint64(k.group), 36) + "." + strconv.FormatUint(k.generation, 36) + "." + strconv.FormatUint(uint64(k.block), 36)
}

// readNow is like read, but runs in the caller's goroutine, without a turn and without a deadline.
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

// readOnce is like readNow, but for a caller that reads the block only once: it does not fill the
// cache.
func (s *Store) readOnce(key blockKey) ([]byte, error) {
	if b, ok := s.cache.GetIfPresent(key); ok {
		return b, nil
	}
	return s.fetch(key)
}

// fetch reads a block from disk, bypassing the cache, and verifies it. For a missing or unreadable
// block it returns ErrDamaged.
func (s *Store) fetch(key blockKey) ([]byte, error) {
	done, err := s.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	began := time.Now()
	b, err := s.get(key, nil)
	s.stats.misses.Add(1)
	s.stats.readNanos.Add(uint64(time.Since(began)))
	return b, err
}

// get appends a verified block to dst, read from disk. The caller has called Use.
func (s *Store) get(key blockKey, dst []byte) ([]byte, error) {
	name := key.encode()
	value, closer, err := s.db.Get(name)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("%w: %v is missing", ErrDamaged, key)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %v: %w", ErrDamaged, key, err)
	}
	dst = append(slices.Grow(dst, len(value)), value...)
	if err := closer.Close(); err != nil {
		return nil, err
	}
	if _, err := openBlock(name, dst); err != nil {
		return nil, fmt.Errorf("%v: %w", key, err)
	}
	return dst, nil
}
