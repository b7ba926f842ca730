//go:build amd64 && !race

package engine

// matchNarrow is matchNarrowGo by vector compares: a quarter of the
// instructions that wait for the lines to come, so that the processor has room
// to start on the next row. It looks at b, which it has asked for by then, only
// if the tag is not in a.
//
//go:noescape
func matchNarrow(a, b *bucket, tag uint64) uint64
