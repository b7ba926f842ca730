package rpc

import (
	"strings"
	"testing"
	"time"
)

func TestFailuresOfAPeerAreToldOnceAMinute(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	for name, test := range map[string]struct {
		at   []time.Duration // times of failures
		told []bool
	}{
		"one":                    {[]time.Duration{0}, []bool{false}},
		"a node that starts":     {[]time.Duration{0, time.Second, 4 * time.Second}, []bool{false, false, false}},
		"a node that is dead":    {[]time.Duration{0, 4 * time.Second, 5 * time.Second, 6 * time.Second}, []bool{false, false, true, false}},
		"it stays dead":          {[]time.Duration{0, 5 * time.Second, 14 * time.Second, 24 * time.Second, 34 * time.Second, 44 * time.Second, 54 * time.Second, 64 * time.Second, 65 * time.Second}, []bool{false, true, false, false, false, false, false, false, true}},
		"it comes and is lost":   {[]time.Duration{0, 5 * time.Second, 16 * time.Second, 17 * time.Second}, []bool{false, true, false, false}},
		"two spells with a rest": {[]time.Duration{0, 11 * time.Second, 22 * time.Second}, []bool{false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var p PeerFailures
			for i, at := range test.at {
				if told := p.ShouldLog("n2", start.Add(at)); told != test.told[i] {
					t.Errorf("at %v: told %v, want %v", at, told, test.told[i])
				}
			}
			if p.ShouldLog("n3", start) {
				t.Error("another's first failure is told")
			}
		})
	}
}

func TestFailingPeersAreBounded(t *testing.T) {
	var p PeerFailures
	for i := range 3 * failingPeersMax {
		p.ShouldLog(strings.Repeat("x", i), time.Unix(1, 0))
		if len(p.mu.of) > failingPeersMax {
			t.Fatalf("%d peers are remembered", len(p.mu.of))
		}
	}
}
