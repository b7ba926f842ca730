package cold

import (
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Pebble's cache is for its indexes, so that a lookup reads one block: what is read of
// ours is cached unpacked from Pebble's. An entry of an index is some 30 bytes for a block
// of 4 KiB; twice as much again is for the blocks that pass through.
const (
	indexShare    = 48 // of the store's files
	indexCacheMin = 2 << 20
	indexCacheMax = 1 << 30 // for 48 GiB of files; of more, what is looked up most
	// indexFitEvery is how many bytes are written before the cache is resized: for
	// that, Pebble reads all its file metadata.
	indexFitEvery = 64 << 20
)

// indexCache is Pebble's cache. Pebble cannot resize it, so it has the largest allowed
// size and the unused part is reserved, which takes no memory.
type indexCache struct {
	pebble  *pebble.Cache
	written atomic.Int64 // bytes since it was fitted

	mu struct {
		sync.Mutex
		release func()
	}
}

// newIndexCache returns a cache of indexCacheMin, which its owner has to close.
func newIndexCache() *indexCache {
	c := &indexCache{pebble: pebble.NewCache(indexCacheMax)}
	c.mu.release = c.pebble.Reserve(indexCacheMax - indexCacheMin)
	return c
}

func (c *indexCache) close() { c.pebble.Unref() }

// fit makes it as large as the indexes of files of so many bytes need.
func (c *indexCache) fit(files uint64) {
	size := min(max(files/indexShare, indexCacheMin), indexCacheMax)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written.Store(0)
	c.mu.release()
	c.mu.release = c.pebble.Reserve(int(indexCacheMax - size))
}

// wrote fits it once much was written.
func (c *indexCache) wrote(bytes int, files func() uint64) {
	if c.written.Add(int64(bytes)) >= indexFitEvery {
		c.fit(files())
	}
}
