package gate

import (
	"testing"
	"time"
)

// parseShortDuration returns the same results as time.ParseDuration.
func TestParseShortDuration(t *testing.T) {
	for text, short := range map[string]bool{
		"5s": true, "500ms": true, "0s": true, "007s": true, "60s": true, "99999ms": true, "60001ms": true,
		"": false, "s": false, "5": false, "ms": false, "1.5s": false, "+5s": false, "-5s": false, "5S": false, "5sec": false, "123456ms": false, "1h": false, "1s1ms": false,
	} {
		got, ok := parseShortDuration([]byte(text))
		if ok != short {
			t.Errorf("%q: read %v", text, ok)
		}
		if want, err := time.ParseDuration(text); ok && (err != nil || got != want) {
			t.Errorf("%q: %v, want %v, %v", text, got, want, err)
		}
	}
}
