package engine

// Prefetch tells the processor that the cache lines at a and b will be read soon. With it, the
// cache misses of several rows or bodies overlap. It has no other effect and cannot fault, whatever
// the addresses. On processors without such a hint, it does nothing.
func Prefetch(a, b uintptr) { prefetchLines(a, b) }
