package propose

import (
	"log/slog"
	"sync"
	"time"
)

// logOffWarn is how far a group's log may be off the clock before that is logged.
// Clocks of machines that are looked after differ by less.
const logOffWarn = time.Minute

// Clock is the time that a group's entries are stamped with: the process's
// clock when it was made, or the log's own time where that is later, and what
// has gone by since. A clock that is set meanwhile does not make the log forget
// what it should remember, and a log that was once stamped by a clock ahead of
// this one does not stand still until this one has come up: it would forget
// nothing, and a group whose memory is full would refuse new keys.
//
// While the process's clock is ahead, as after one that was wrong at the start is
// set right, this one goes at twice the speed. It forgets up to twice as fast, and
// not at once; but it must come up: keys that tell when they were made are refused
// if that is too far ahead of the log.
type Clock struct {
	logTime func() time.Time
	logger  *slog.Logger

	mu struct {
		sync.Mutex           // one goroutine asks for the time, metrics for how far it is off
		at         time.Time // what the clock said at since, without a monotonic reading
		since      time.Time
		late       bool // by more than logOffWarn, which was logged
	}
}

// NewClock returns a clock that reads at now, and is never behind logTime: the latest
// stamp of the entries that were applied here. at is time.Now(), but in tests.
func NewClock(at time.Time, logTime func() time.Time, logger *slog.Logger) *Clock {
	c := &Clock{logTime: logTime, logger: logger}
	c.mu.at, c.mu.since = at.Round(0), time.Now()
	return c
}

func (c *Clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.mu.at, c.mu.since = c.readLocked(now), now
	// Stamps of this clock are never above it, so what is comes from another
	// process.
	if stamped := c.logTime(); stamped.After(c.mu.at) {
		c.mu.at = stamped
		if ahead := time.Until(stamped); ahead > logOffWarn {
			c.logger.Warn("the log's time is ahead of this machine's clock and continues from there", "by", ahead.Round(time.Second))
		}
	}
	behind := now.Round(0).Sub(c.mu.at)
	if late := behind > logOffWarn; late != c.mu.late {
		if c.mu.late = late; late {
			c.logger.Warn("this machine's clock was set ahead: the log's time runs at twice the speed until it has caught up", "by", behind.Round(time.Second))
		}
	}
	return c.mu.at
}

// Behind returns how far the next stamp would be behind the process's clock, 0 if
// it would not.
func (c *Clock) Behind() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	wall := now.Round(0)
	return max(0, min(wall.Sub(c.readLocked(now)), wall.Sub(c.logTime())))
}

// readLocked returns what the clock says, the log's own time not looked at.
func (c *Clock) readLocked(now time.Time) time.Time {
	passed := now.Sub(c.mu.since)
	at := c.mu.at.Add(passed)
	return at.Add(max(0, min(passed, now.Round(0).Sub(at))))
}
