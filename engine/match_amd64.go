//go:build amd64 && !race

package engine

// matchNarrow is like matchNarrowGo, but with vector compares. Only a quarter as many instructions
// wait for memory, so the processor has room to start on the next row. matchNarrow requests both
// lines first, and compares b only if the tag is not in a.
//
//go:noescape
func matchNarrow(a, b *bucket, tag uint64) uint64
