package main

import "testing"

func TestPercentFor(t *testing.T) {
	for _, live := range []uint64{0, 1 << 20, 10 << 20, 100 << 20, 255 << 20, 256 << 20, 1 << 30, 64 << 30} {
		percent := percentFor(live)
		room := live * uint64(percent) / 100
		if percent < gcPercent || live >= 4<<20 && room < gcHeadroomBytes/2 {
			t.Errorf("%d bytes live: %d %%, %d bytes of room", live, percent, room)
		}
		if live > 256<<20 && percent != gcPercent {
			t.Errorf("%d bytes live: %d %%, want %d", live, percent, gcPercent)
		}
		if live < 256<<20 && room > 4*gcHeadroomBytes {
			t.Errorf("%d bytes live: room for %d bytes", live, room)
		}
	}
	if liveBytes() > 1<<40 {
		t.Errorf("%d bytes live", liveBytes())
	}
}
