package replica

import (
	"sync"
	"time"
	"weak"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// These constants bound one group's log cache. A leader reads the newest entries once for each
// follower, and a follower reads each entry once, soon after storing it. An entry may be as large
// as a whole batch, so bytes are bounded too.
const (
	logCacheEntriesMax = 512
	logCacheBytesMax   = 4 << 20
	// An entry leaves the cache after one to two times logCacheAge. A reader that needs it later
	// is far behind, and reads the log instead.
	logCacheAge = 10 * time.Second
	// The newest entry stays in the cache if it has at most logCacheNewestMax bytes, because
	// raft's leader reads it for each heartbeat of an idle group.
	logCacheNewestMax = 4 << 10
)

// logCache keeps the newest entries of a log in memory, in front of store. raft.LogCache bounds
// only the number of entries, and keeps each proposal's future alive.
type logCache struct {
	raft.LogStore

	mu struct {
		sync.RWMutex
		ring  []raft.Log // entry i is at i % len; raft shares its data, and nobody changes the data
		first uint64     // entries from first to next-1 are cached; if none is cached, first equals next
		next  uint64
		bytes int    // size of the cached entries, at most logCacheBytesMax
		aged  uint64 // entries with a lower index have been cached for at least logCacheAge
		aging bool   // the timer for age runs
	}
}

func newLogCache(store raft.LogStore) *logCache {
	c := &logCache{LogStore: store}
	c.mu.ring = make([]raft.Log, logCacheEntriesMax)
	return c
}

// GetLog implements raft.LogStore.
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

// StoreLog implements raft.LogStore.
func (c *logCache) StoreLog(entry *raft.Log) error {
	return c.StoreLogs([]*raft.Log{entry})
}

// StoreLogs implements raft.LogStore. It caches entries after they are stored.
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
		c.ageLater()
	}
	return nil
}

// ageLater schedules age. The timer holds the cache by a weak pointer, because the cache refers to
// the replica. A strong pointer would keep the table of a closed replica in memory for up to twice
// logCacheAge.
func (c *logCache) ageLater() {
	weakly := weak.Make(c)
	time.AfterFunc(logCacheAge, func() {
		if c := weakly.Value(); c != nil {
			c.age()
		}
	})
}

// age removes the entries that were cached at its previous call, except a small newest entry. It
// reschedules itself until only that entry is left. It uses only memory, so closing the log need
// not wait for it.
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
		c.ageLater()
	}
}

// DeleteRange implements raft.LogStore. From the beginning of the call, the cache returns none of
// these entries.
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

// evictLocked removes the entries below first.
func (c *logCache) evictLocked(first uint64) {
	for ; c.mu.first < first; c.mu.first++ {
		slot := &c.mu.ring[c.mu.first%logCacheEntriesMax]
		c.mu.bytes -= storage.EntryBytes(slot)
		*slot = raft.Log{}
	}
}
