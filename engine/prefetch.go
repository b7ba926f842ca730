//go:build amd64 || arm64

package engine

import "unsafe"

// prefetch asks for the cache lines at a and b, so that the misses of several
// rows overlap. It reads nothing and cannot fault.
//
//go:noescape
func prefetch(a, b unsafe.Pointer)
