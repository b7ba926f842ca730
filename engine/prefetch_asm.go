//go:build amd64 || arm64

package engine

//go:noescape
func prefetchLines(a, b uintptr)
