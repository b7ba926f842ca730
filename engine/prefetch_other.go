//go:build !amd64 && !arm64

package engine

func prefetchLines(_, _ uintptr) {}
