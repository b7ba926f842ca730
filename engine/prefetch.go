package engine

// Prefetch asks the processor for the cache lines at a and b, which are read soon. So the cache
// misses of several rows or bodies overlap. It reads nothing, changes nothing and cannot fault,
// whatever the addresses. Where the processor has no such hint, it does nothing.
func Prefetch(a, b uintptr) { prefetchLines(a, b) }
