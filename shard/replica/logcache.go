package replica

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// Bounds of one group's log cache. A leader reads the newest entries once for
// each follower and a follower reads each entry once to apply it, soon after
// it was stored; an entry here may be as large as a whole batch, so bytes are
// bounded and not entries alone.
const (
	logCacheEntriesMax = 512
	logCacheBytesMax   = 4 << 20
	// An entry leaves once it has been here for one to two logCacheAges: who needs it
	// later is far behind, and reads it from the log.
	logCacheAge = 10 * time.Second
	// The newest entry stays if it has no more bytes than this: raft's leader looks at it
	// for each heartbeat of an idle group.
	logCacheNewestMax = 4 << 10
)

// logCache keeps the newest entries of a log in memory, in front of store.
// raft.LogCache bounds entries only and keeps each proposal's future alive.
type logCache struct {
	raft.LogStore

	mu struct {
		sync.RWMutex
		ring  []raft.Log // entry i at i % len; data shared with raft, never changed
		first uint64     // [first, next) is cached; equal when nothing is
		next  uint64
		bytes int    // of [first, next), at most logCacheBytesMax
		aged  uint64 // entries below it have been here for a logCacheAge
		aging bool   // age is to be called
	}
}

func newLogCache(store raft.LogStore) *logCache {
	c := &logCache{LogStore: store}
	c.mu.ring = make([]raft.Log, logCacheEntriesMax)
	return c
}

// GetLog is raft.LogStore's.
func (c *logCache) GetLog(index uint64, entry *raft.Log) error {
	c.mu.RLock()
	if c.mu.first <= index && index < c.mu.next {
		*entry = c.mu.ring[index%logCacheEntriesMax]
		c.mu.RUnlock()
		return nil
	}
	c.mu.RUnlock()
	return c.LogStore.GetLog(index, entry)
}

// StoreLog is raft.LogStore's.
func (c *logCache) StoreLog(entry *raft.Log) error {
	return c.StoreLogs([]*raft.Log{entry})
}

// StoreLogs is raft.LogStore's. Entries are cached once they are stored.
func (c *logCache) StoreLogs(entries []*raft.Log) error {
	if err := c.LogStore.StoreLogs(entries); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.addLocked(e)
	}
	if !c.mu.aging {
		c.mu.aging, c.mu.aged = true, c.mu.first
		time.AfterFunc(logCacheAge, c.age)
	}
	return nil
}

// age forgets what was here when it was last called, but for a small newest entry. It
// calls itself again until nothing else is left, and touches nothing but memory, so a log
// that is closed needs not wait for it.
func (c *logCache) age() {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := c.mu.next
	if c.mu.first < end && storage.EntryBytes(&c.mu.ring[(end-1)%logCacheEntriesMax]) <= logCacheNewestMax {
		end--
	}
	c.evictLocked(min(c.mu.aged, end))
	c.mu.aged = c.mu.next
	c.mu.aging = c.mu.first < end
	if c.mu.aging {
		time.AfterFunc(logCacheAge, c.age)
	}
}

// DeleteRange is raft.LogStore's. Nothing that is deleted is served from the
// cache from the moment the call begins.
func (c *logCache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	if first < c.mu.next && last >= c.mu.first {
		if last+1 < c.mu.next && first <= c.mu.first {
			c.evictLocked(last + 1)
		} else {
			c.evictLocked(c.mu.next)
		}
	}
	c.mu.Unlock()
	return c.LogStore.DeleteRange(first, last)
}

func (c *logCache) addLocked(e *raft.Log) {
	if e.Index != c.mu.next {
		c.evictLocked(c.mu.next)
		c.mu.first, c.mu.next = e.Index, e.Index
	}
	if c.mu.next-c.mu.first == logCacheEntriesMax {
		c.evictLocked(c.mu.first + 1)
	}
	c.mu.ring[e.Index%logCacheEntriesMax] = *e
	c.mu.next++
	c.mu.bytes += storage.EntryBytes(e)
	for c.mu.bytes > logCacheBytesMax {
		c.evictLocked(c.mu.first + 1)
	}
}

// evictLocked forgets the entries below first.
func (c *logCache) evictLocked(first uint64) {
	for ; c.mu.first < first; c.mu.first++ {
		slot := &c.mu.ring[c.mu.first%logCacheEntriesMax]
		c.mu.bytes -= storage.EntryBytes(slot)
		*slot = raft.Log{}
	}
}
