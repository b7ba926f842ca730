package propose

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The log's clock follows the later of the log's latest stamp and the machine's clock.
func TestLogClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stamped time.Time
		var out bytes.Buffer
		began := time.Now()
		c := NewClock(time.Now(), func() time.Time { return stamped }, slog.New(slog.NewTextHandler(&out, nil)))
		want := func(after time.Duration, why string) {
			t.Helper()
			if got := c.now().Sub(began); got != after {
				t.Errorf("%s: %v after the start, want %v", why, got, after)
			}
		}
		want(0, "an empty log")
		time.Sleep(time.Second)
		want(time.Second, "the clock goes on")
		stamped = c.now()
		time.Sleep(time.Second)
		want(2*time.Second, "own stamps change nothing")
		stamped = began.Add(30 * time.Second)
		want(30*time.Second, "a stamp of another leader")
		time.Sleep(time.Second)
		want(31*time.Second, "the log's time goes on from there")
		if out.Len() > 0 {
			t.Errorf("logged %s", &out)
		}
		stamped = began.Add(time.Hour)
		want(time.Hour, "a clock that was wrong")
		stamped = time.Time{}
		time.Sleep(time.Minute)
		want(time.Hour+time.Minute, "the log's time never goes back")
		if n := strings.Count(out.String(), "ahead of this machine's clock"); n != 1 {
			t.Errorf("%d warnings: %s", n, &out)
		}
	})
}

// If the machine's clock was an hour behind at the start, the log's clock runs at twice the speed
// until it has caught up. Then it runs at the speed of the machine's clock.
func TestLogClockComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := NewClock(time.Now(), func() time.Time { return time.Time{} }, slog.New(slog.NewTextHandler(&out, nil)))
		c.mu.at = c.mu.at.Add(-time.Hour)
		began := time.Now()
		for _, step := range []struct {
			name           string
			sleep          time.Duration
			behind, passed time.Duration // passed is how far c has advanced since its start
		}{
			{"at once", 0, time.Hour, 0},
			{"after a second", time.Second, time.Hour - time.Second, 2 * time.Second},
			{"idle for long", 30*time.Minute - time.Second, 30 * time.Minute, time.Hour},
			{"nearly there", 30*time.Minute - time.Second, time.Second, 2*time.Hour - 2*time.Second},
			{"past it", 2 * time.Second, 0, 2*time.Hour + time.Second},
			{"and on", time.Minute, 0, 2*time.Hour + time.Minute + time.Second},
		} {
			time.Sleep(step.sleep)
			if got := c.Behind(); got != step.behind {
				t.Errorf("%s: behind by %v, want %v", step.name, got, step.behind)
			}
			if got := c.now().Sub(began) + time.Hour; got != step.passed {
				t.Errorf("%s: %v has passed, want %v", step.name, got, step.passed)
			}
		}
		if n := strings.Count(out.String(), "twice the speed"); n != 1 {
			t.Errorf("%d warnings: %s", n, &out)
		}
	})
}
