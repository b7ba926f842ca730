package sink

import (
	"encoding/json"
	"math"
	"testing"
)

func TestPositionJSON(t *testing.T) {
	for want, p := range map[string]Position{
		`812`:                  {0, 812},
		`"5-0"`:                {5, 0},
		`18446744073709551615`: {0, math.MaxUint64},
	} {
		body, err := json.Marshal(p)
		if err != nil || string(body) != want {
			t.Errorf("Marshal(%+v) = %s, %v, want %s", p, body, err, want)
		}
		var back Position
		if err := json.Unmarshal([]byte(want), &back); err != nil || back != p {
			t.Errorf("Unmarshal(%s) = %+v, %v, want %+v", want, back, err, p)
		}
	}
	for _, bad := range []string{`""`, `"-"`, `"1-2-3"`, `-1`, `1.5`, `18446744073709551616`, `"x"`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &Position{}); err == nil {
			t.Errorf("Unmarshal(%s) succeeded", bad)
		}
	}
}

func TestPositionOrder(t *testing.T) {
	rising := []Position{{}, {0, 1}, {0, math.MaxUint64}, {1, 0}, {2, 0}}
	for i, p := range rising {
		for j, q := range rising {
			if got := p.Less(q); got != (i < j) {
				t.Errorf("%v.Less(%v) = %v", p, q, got)
			}
		}
	}
}
