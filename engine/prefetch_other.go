//go:build !amd64 && !arm64

package engine

import "unsafe"

// prefetch is only a hint; there is none for this processor.
func prefetch(_, _ unsafe.Pointer) {}
