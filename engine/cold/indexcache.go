package cold

import (
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Pebble's cache contains the indexes of Pebble's files, so that a lookup reads only one block from
// disk. Blocks are cached by the store itself. A file's index has some 30 bytes for each block of 4
// KiB. Pebble's cache is three times as large as the indexes, because blocks pass through it too.
const (
	indexShare    = 48 // the cache has a 48th of the size of the store's files
	indexCacheMin = 2 << 20
	indexCacheMax = 1 << 30 // enough for 48 GiB of files; with more, it keeps the most used indexes
	// indexFitEvery is how many bytes the store writes between two resizes of the cache. For
	// a resize, Pebble reads all its file metadata.
	indexFitEvery = 64 << 20
)

// indexCache owns Pebble's cache. Pebble cannot resize a cache. So indexCache creates it at the
// largest size, and calls Reserve for the part that must stay unused. That part takes no memory.
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

// wrote adds to the number of written bytes. It calls fit once for every indexFitEvery bytes.
func (c *indexCache) wrote(bytes int, filesBytes func() uint64) {
	if c.written.Add(int64(bytes)) >= indexFitEvery {
		c.fit(filesBytes())
	}
}
