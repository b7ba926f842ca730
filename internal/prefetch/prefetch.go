// Package prefetch asks the processor for memory that is read soon, so that the cache misses
// of several rows or bodies overlap.
//
// Invariant: it reads nothing, changes nothing and cannot fault, whatever the address.
package prefetch

// Lines asks for the cache lines at a and b. Where the processor has no such hint, it does
// nothing.
func Lines(a, b uintptr) { lines(a, b) }
