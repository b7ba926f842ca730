package hot

import "sync"

// Feed adds the changes of applied entries to the lists of a shard. Begin, Add and End belong to the goroutine
// that applies entries. The other methods may be called from any. They hold the lock only to copy.
type Feed struct {
	mu struct {
		sync.Mutex
		lists
		loaded bool // Load has succeeded
	}
}

// NewFeed returns a feed of empty lists.
func NewFeed() *Feed { return &Feed{} }

// Begin begins the changes of an entry with a time of the log, in Unix milliseconds. End must follow.
func (f *Feed) Begin(now int64) {
	f.mu.Lock()
	if tick := now / levels[0].unit.Milliseconds(); tick > f.mu.tick {
		f.mu.advance(tick)
	}
}

// Add adds what a column of a key gained.
func (f *Feed) Add(key uint64, column uint8, delta int64) { f.mu.open.add(key, column, delta) }

// End ends the changes of an entry.
func (f *Feed) End() { f.mu.Unlock() }

// Bytes returns how much memory the lists take.
func (f *Feed) Bytes() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bytes()
}

// Hottest returns the largest gains of a column in a window that ends now, in Unix milliseconds.
func (f *Feed) Hottest(w Window, of uint8, now int64, limit int) Hottest {
	f.mu.Lock()
	span := f.mu.window(w, of, now)
	f.mu.Unlock()
	return span.hottest(limit)
}
