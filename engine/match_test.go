package engine

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

// matchNarrow, with vector compares where the processor has them, finds the same slots as
// matchNarrowGo.
func TestMatchNarrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		half := rapid.Uint64Range(0, 15) // few values, so that many are equal
		var a, b bucket
		for w := range a {
			a[w] = half.Draw(t, "a") | half.Draw(t, "a high")<<32
			b[w] = half.Draw(t, "b") | half.Draw(t, "b high")<<32
		}
		tag := rapid.SampledFrom([]uint64{5, 9, 13}).Draw(t, "tag")
		slot := func(m uint64) int { return bits.TrailingZeros64(m) }
		if got, want := matchNarrow(&a, &b, tag), matchNarrowGo(&a, &b, tag); slot(got) != slot(want) {
			t.Errorf("slot %d, want %d", slot(got), slot(want))
		}
	})
}
