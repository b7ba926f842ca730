package gate

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Budget bounds a resource that all clients share, such as memory in bytes.
type Budget struct {
	Max  int64
	used atomic.Int64
}

// Acquire reserves n. If less is free, it reserves nothing and returns false.
func (b *Budget) Acquire(n int) bool {
	for {
		used := b.used.Load()
		if used+int64(n) > b.Max {
			return false
		}
		if b.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

// acquireUpTo reserves n, but at most 1/shares of the free amount, so that others get some too. It
// returns the reserved amount.
func (b *Budget) acquireUpTo(n, shares int) int {
	for {
		used := b.used.Load()
		taken := max(min(int64(n), (b.Max-used)/int64(shares)), 0)
		if b.used.CompareAndSwap(used, used+taken) {
			return int(taken)
		}
	}
}

// Fits reports whether n is free.
func (b *Budget) Fits(n int) bool { return b.Used()+int64(n) <= b.Max }

// Release frees n of the reserved amount.
func (b *Budget) Release(n int) { b.used.Add(-int64(n)) }

// Used returns the reserved amount.
func (b *Budget) Used() int64 { return b.used.Load() }

const (
	// WaveMax bounds the concurrent calls of one connection. Each call needs a goroutine.
	WaveMax = 256
	// HelpersMax bounds the goroutines for concurrent calls of all connections together. Each takes
	// about 7 KiB while it waits for a write. A connection gets only a share of the free helpers,
	// so that a few connections do not delay the others.
	HelpersMax = 16 << 10
)

// panicked is a panic of another goroutine, with that goroutine's stack.
type panicked struct {
	cause any
	stack []byte
}

func (p *panicked) String() string { return fmt.Sprintf("%v\n%s", p.cause, p.stack) }

// Concurrently calls do for each number below n, and returns when all calls have returned. It uses
// the caller's goroutine, and as many other goroutines as the budget allows, possibly none. It
// passes a panic on to the caller.
func (b *Budget) Concurrently(n int, do func(i int)) {
	if n == 1 {
		do(0)
		return
	}
	var next atomic.Int64
	var failed atomic.Pointer[panicked]
	work := func() { // ends when no number is left
		defer func() {
			if cause := recover(); cause != nil {
				failed.Store(&panicked{cause, debug.Stack()})
			}
		}()
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	more := b.acquireUpTo(min(n, WaveMax)-1, HelpersMax/WaveMax)
	var all sync.WaitGroup
	for range more {
		all.Go(work)
	}
	work()
	all.Wait()
	b.Release(more)
	if p := failed.Load(); p != nil {
		panic(p)
	}
}
