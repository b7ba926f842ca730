package redis

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

const (
	// waveMax bounds the concurrent calls of one connection. Each has a goroutine.
	waveMax = 256
	// helpersMax bounds the goroutines for concurrent calls of all connections together. Each takes
	// about 7 KiB while it waits for a write. A connection gets only a share of the free ones, so
	// that a few connections do not delay the others. It gets waveMax if all are free.
	helpersMax = 16 << 10
)

// panicked is a panic of another goroutine, with that goroutine's stack.
type panicked struct {
	cause any
	stack []byte
}

func (p *panicked) String() string { return fmt.Sprintf("%v\n%s", p.cause, p.stack) }

// concurrently calls do for each number below n, and returns when all calls have returned. It uses
// the caller's goroutine and as many helper goroutines as it can get, possibly none. It passes a
// panic on to the caller.
func (s *Server) concurrently(n int, do func(i int)) {
	if n == 1 {
		do(0)
		return
	}
	var next atomic.Int64
	var failed atomic.Pointer[panicked]
	work := func() { // ends with the last number
		defer func() {
			if cause := recover(); cause != nil {
				failed.Store(&panicked{cause, debug.Stack()})
			}
		}()
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	more := s.helpers.acquireUpTo(min(n, waveMax)-1, helpersMax/waveMax)
	var all sync.WaitGroup
	for range more {
		all.Go(work)
	}
	work()
	all.Wait()
	s.helpers.release(more)
	if p := failed.Load(); p != nil {
		panic(p)
	}
}
