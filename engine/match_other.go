//go:build !amd64 || race

package engine

func matchNarrow(a, b *bucket, tag uint64) uint64 { return matchNarrowGo(a, b, tag) }
