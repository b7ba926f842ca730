package cold

import (
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Pebble's cache holds the indexes of its files, so that a lookup reads one block from disk. The
// store caches the blocks themselves, without what Pebble adds. An index entry takes some 30 bytes
// for a block of 4 KiB. Pebble's cache is three times as large as the indexes, because blocks pass
// through it too.
const (
	indexShare    = 48 // one part in 48 of the size of the store's files
	indexCacheMin = 2 << 20
	indexCacheMax = 1 << 30 // enough for 48 GiB of files; with more, the most used indexes stay
	// indexFitEvery is how many bytes the store writes between two resizes of the cache. For
	// a resize, Pebble reads all its file metadata.
	indexFitEvery = 64 << 20
)

// indexCache owns Pebble's cache. Pebble cannot resize a cache. So indexCache creates the cache
// with the largest size, and reserves the unused part; the reserved part takes no memory.
type indexCache struct {
	pebble  *pebble.Cache
	written atomic.Int64 // bytes since the last fit

	mu struct {
		sync.Mutex
		release func()
	}
}

// newIndexCache returns a cache of indexCacheMin bytes, which the caller must close.
func newIndexCache() *indexCache {
	c := &indexCache{pebble: pebble.NewCache(indexCacheMax)}
	c.mu.release = c.pebble.Reserve(indexCacheMax - indexCacheMin)
	return c
}

// fit resizes the cache to suit the indexes of the store's files. filesBytes is the size of all
// files together.
func (c *indexCache) fit(filesBytes uint64) {
	size := min(max(filesBytes/indexShare, indexCacheMin), indexCacheMax)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written.Store(0)
	c.mu.release()
	c.mu.release = c.pebble.Reserve(int(indexCacheMax - size))
}

// wrote counts written bytes and calls fit after each indexFitEvery bytes.
func (c *indexCache) wrote(bytes int, filesBytes func() uint64) {
	if c.written.Add(int64(bytes)) >= indexFitEvery {
		c.fit(filesBytes())
	}
}
