package redis

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// sideBySide calls do for each of n numbers, on up to so many goroutines, and returns
// when all calls have. A panic of one becomes the caller's.
func sideBySide(n, most int, do func(i int)) {
	if n == 1 {
		do(0)
		return
	}
	var all sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[panicked]
	for range min(n, most) {
		all.Go(func() { // ends with the last number
			defer func() {
				if cause := recover(); cause != nil {
					failed.Store(&panicked{cause, debug.Stack()})
				}
			}()
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	all.Wait()
	if p := failed.Load(); p != nil {
		panic(p)
	}
}

// panicked is a panic of another goroutine, with that one's stack.
type panicked struct {
	cause any
	stack []byte
}

func (p *panicked) String() string { return fmt.Sprintf("%v\n%s", p.cause, p.stack) }
