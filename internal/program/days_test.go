package program

import (
	"testing"
	"time"
)

func TestDurationsHaveDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"180d": 180 * 24 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0": 0, "0d": 0, "-2s": -2 * time.Second,
		"-1d": -1, "d": -1, "1d-1h": -1, "99999d": -1, "1w": -1, "": -1, "1h2d": -1,
	} {
		var d time.Duration
		err := DurationFlag{&d}.Set(text)
		if (err != nil) != (want == -1) || err == nil && d != want {
			t.Errorf("%q: %v, %v, want %v", text, d, err, want)
		}
	}
}
