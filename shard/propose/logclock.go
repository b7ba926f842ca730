package propose

import (
	"log/slog"
	"sync"
	"time"
)

// If a log's time differs from the machine's clock by more than logOffWarn, Clock logs a warning.
// The clocks of maintained machines differ by less.
const logOffWarn = time.Minute

// Clock gives the time with which a proposer stamps a group's entries. It starts at the machine's
// clock or the log's own time, whichever is later. It always advances, even if the machine's clock
// is set back, or if an earlier clock was ahead when it stamped the log. If the log's time stopped,
// keys would never expire, and a group with a full memory of keys would refuse new keys.
//
// While the machine's clock is ahead, for example after a correction, this clock runs at twice the
// speed. So keys expire up to twice as fast, but not all at once. Clock must catch up with the
// machine's clock, because a group refuses keys whose own time is too far ahead of the log.
type Clock struct {
	logTime func() time.Time
	logger  *slog.Logger

	mu struct {
		sync.Mutex           // the proposer calls c.now() while metrics call c.Behind()
		at         time.Time // this clock's time at the moment since; without a monotonic reading
		since      time.Time
		late       bool // a difference above logOffWarn was logged
	}
}

// NewClock returns a clock that begins at the given start time. It is never behind the result of
// logTime, the latest stamp of the applied entries. Except in tests, start is time.Now().
func NewClock(start time.Time, logTime func() time.Time, logger *slog.Logger) *Clock {
	c := &Clock{logTime: logTime, logger: logger}
	c.mu.at, c.mu.since = start.Round(0), time.Now()
	return c
}

func (c *Clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.mu.at, c.mu.since = c.readLocked(now), now
	// A stamp later than c.mu.at comes from another process, because this clock never returns a
	// later time.
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

// Behind returns how far the next stamp would be behind the machine's clock, or 0 if it would be
// ahead.
func (c *Clock) Behind() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	wall := now.Round(0)
	return max(0, min(wall.Sub(c.readLocked(now)), wall.Sub(c.logTime())))
}

// readLocked returns this clock's time. It does not consider the log's time.
func (c *Clock) readLocked(now time.Time) time.Time {
	passed := now.Sub(c.mu.since)
	at := c.mu.at.Add(passed)
	return at.Add(max(0, min(passed, now.Round(0).Sub(at))))
}
