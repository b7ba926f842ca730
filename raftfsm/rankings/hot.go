package rankings

import "sync"

// HotLists adds the changes of applied entries to the lists of a shard. Only the goroutine that
// applies entries calls Begin, Add and End. Any goroutine may call the other methods, which hold
// the lock only while they copy.
type HotLists struct {
	mu struct {
		sync.Mutex
		lists
		loaded bool // Load has succeeded
	}
}

// NewHotLists returns empty lists.
func NewHotLists() *HotLists { return &HotLists{} }

// Begin locks the lists for the changes of an entry. now is the time of the log, in Unix
// milliseconds. End must follow.
func (h *HotLists) Begin(now int64) {
	h.mu.Lock()
	if tick := now / levels[0].unit.Milliseconds(); tick > h.mu.tick {
		h.mu.advance(tick)
	}
}

// Add adds delta to the gain of a column of a key.
func (h *HotLists) Add(key uint64, column uint8, delta int64) { h.mu.open.add(key, column, delta) }

// End unlocks the lists after the changes of an entry.
func (h *HotLists) End() { h.mu.Unlock() }

// Bytes returns how much memory the lists take.
func (h *HotLists) Bytes() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.bytes()
}

// Hottest returns the largest gains of a column in a window that ends at the time now, in Unix
// milliseconds.
func (h *HotLists) Hottest(w Window, of uint8, now int64, limit int) Hottest {
	h.mu.Lock()
	span := h.mu.window(w, of, now)
	h.mu.Unlock()
	return span.hottest(limit)
}
