package sink

import "testing"

func TestSpan(t *testing.T) {
	at := func(lo uint64) ShardPosition { return ShardPosition{Position: Position{Lo: lo}, Known: true} }
	none := ShardPosition{Position: Position{Lo: 99}} // a shard without a position, which does not count
	for name, c := range map[string]struct {
		shards    []ShardPosition
		low, high uint64
	}{
		"no shards":           {nil, 5, 5},
		"none has one":        {[]ShardPosition{none, none}, 5, 5},
		"one has one":         {[]ShardPosition{none, at(7), none}, 7, 7},
		"at 0 and above":      {[]ShardPosition{at(3), at(0), none}, 0, 3},
		"both sides of start": {[]ShardPosition{at(4), at(8), at(6)}, 4, 8},
	} {
		low, high := Span(c.shards, Position{Lo: 5})
		if low != (Position{Lo: c.low}) || high != (Position{Lo: c.high}) {
			t.Errorf("%s: %v to %v, want %d to %d", name, low, high, c.low, c.high)
		}
	}
}
