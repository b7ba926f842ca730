package shard

import (
	"log/slog"
	"time"
)

// logAheadWarn is how far a group's log may be ahead of the clock before that is
// logged. Clocks of machines that are looked after differ by less.
const logAheadWarn = time.Minute

// logClock is the time that a group's entries are stamped with: the process's
// clock when it was made, or the log's own time where that is later, and what
// has gone by since. A clock that is set meanwhile does not make the log forget
// what it should remember, and a log that was once stamped by a clock ahead of
// this one does not stand still until this one has come up: it would forget
// nothing, and a group whose memory is full would refuse new keys.
//
// One goroutine uses it.
type logClock struct {
	at, since time.Time // at was the time at since
	logTime   func() time.Time
	logger    *slog.Logger
}

// newLogClock returns a clock that is never behind logTime, the latest stamp of
// the entries that were applied here.
func newLogClock(logTime func() time.Time, logger *slog.Logger) *logClock {
	now := time.Now()
	return &logClock{at: now, since: now, logTime: logTime, logger: logger}
}

func (c *logClock) now() time.Time {
	now := c.at.Add(time.Since(c.since))
	// Stamps of this clock are never above it, so what is comes from another
	// process.
	stamped := c.logTime()
	if !stamped.After(now) {
		return now
	}
	c.at, c.since = stamped, time.Now()
	if ahead := time.Until(stamped); ahead > logAheadWarn {
		c.logger.Warn("the log's time is ahead of this machine's clock and goes on from there", "by", ahead.Round(time.Second))
	}
	return stamped
}
