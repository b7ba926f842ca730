//go:build amd64 && !race

package engine

// matchNarrow is matchNarrowGo by vector compares: a quarter of the
// instructions that wait for the lines to come, so that the processor has room
// to start on the next row.
//
//go:noescape
func matchNarrow(a, b *bucket, tag uint64) uint64
