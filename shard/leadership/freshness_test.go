package leadership

import (
	"context"
	"testing"
	"time"
)

// After a suspension, during which the monotonic clock stopped, a confirmation is as old as the
// wall clock shows. A wall clock that was set back makes no confirmation younger.
func TestSuspended(t *testing.T) {
	f := &Freshness{Ask: func(context.Context) (uint64, error) { return 7, nil }}
	defer f.Close()
	if _, err := f.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	confirmed := *f.last.Load()
	for name, test := range map[string]struct {
		asked, wall time.Duration // ago
		fresh       bool
	}{
		"at once":                  {0, 0, true},
		"a second later":           {time.Second, time.Second, true},
		"after a suspension":       {time.Second, time.Hour, false},
		"the wall clock set back":  {time.Minute, -time.Hour, false},
		"the wall clock set ahead": {0, time.Hour, false},
	} {
		c := confirmed
		c.Asked, c.wall = c.Asked.Add(-test.asked), c.wall.Add(-test.wall)
		f.last.Store(&c)
		if got := f.Since(time.Now().Add(-10 * time.Second)); (got != nil) != test.fresh {
			t.Errorf("%s: %v, want fresh: %v", name, got, test.fresh)
		}
	}
}
