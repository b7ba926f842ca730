package bulk

import (
	"context"
	"slices"
	"sync"

	"github.com/countd/countd/client"
)

// cut is a range of a file's rows that one request adds.
type cut struct {
	seq       uint64
	before    Position // where it begins
	after     Position // where it ends
	sums      client.Sums
	ids       []client.ID // ids of the rows in sums, one for each row
	overflows Overflows   // from the server's answer
	acked     bool        // guarded by the mutex of cuts
}

func (c *cut) rows() int64 { return c.after.Rows - c.before.Rows }

func (c *cut) add(inc increment) {
	c.sums.Add(inc.id, inc.deltas)
	c.ids = append(c.ids, inc.id)
}

// progress is the part of a progress file about cuts. seq is the number of the lowest cut that is
// not added. position is the start of that cut: every earlier row was added or rejected. overflows
// has the rows that did not fit.
type progress struct {
	seq       uint64
	position  Position
	overflows Overflows
}

func (p progress) summary() Summary {
	missing := p.overflows.Rows()
	return Summary{
		Rows: p.position.Rows - missing, Rejected: p.position.Rejected + missing,
		Position: p.position, Overflows: p.overflows,
	}
}

// cuts tracks which cuts of a file are added, and how far the progress file lags behind.
// The server may acknowledge cuts in any order.
//
// Invariant: the number of an admitted cut is below saved + client.Window. A run that begins with
// the progress file repeats all cuts whose numbers are saved or above. So every repeat is still in
// the server's window.
type cuts struct {
	mu struct {
		sync.Mutex
		open      []*cut        // admitted cuts, beginning at the oldest unacknowledged one
		next      uint64        // number of the next cut
		end       Position      // where the next cut begins
		overflows Overflows     // overflows in the cuts before open
		saved     uint64        // lowest open number according to the progress file
		freed     chan struct{} // closed and replaced when another cut may be admitted
	}
	behind chan struct{} // has a token when the progress file lags far behind
	kept   bool          // there is a progress file
}

func newCuts(from progress, kept bool) *cuts {
	c := &cuts{behind: make(chan struct{}, 1), kept: kept}
	c.mu.next, c.mu.end, c.mu.overflows, c.mu.saved = from.seq, from.position, from.overflows, from.seq
	c.mu.freed = make(chan struct{})
	return c
}

// letThrough waits until a complete cut may be sent, and numbers it. If ctx ends first, it
// returns ctx's error.
func (c *cuts) letThrough(ctx context.Context, next *cut) error {
	for {
		freed := c.admit(next)
		if freed == nil {
			return nil
		}
		select {
		case c.behind <- struct{}{}:
		default: // the saver has a token already
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// admit numbers a cut and adds it to open, if the window allows it and no open cut must be
// applied first. Otherwise it returns a channel that is closed when another try may
// succeed.
func (c *cuts) admit(next *cut) (freed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.next >= c.mu.saved+client.Window || slices.ContainsFunc(c.mu.open, func(open *cut) bool { return !open.acked && open.sums.InOrder(&next.sums) }) {
		return c.mu.freed
	}
	next.seq = c.mu.next
	c.mu.next++
	c.mu.end = next.after
	c.mu.open = append(c.mu.open, next)
	return nil
}

// ack records that the server added a cut.
func (c *cuts) ack(done *cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done.acked = true
	c.wakeLocked() // for a cut that waits for this one
	for len(c.mu.open) > 0 && c.mu.open[0].acked {
		c.mu.overflows.merge(c.mu.open[0].overflows)
		c.mu.open[0] = nil
		c.mu.open = c.mu.open[1:]
	}
	lowest := c.progressLocked().seq
	switch {
	case !c.kept:
		c.savedLocked(lowest)
	case lowest >= c.mu.saved+client.Window/2:
		select {
		case c.behind <- struct{}{}:
		default: // the saver has a token already
		}
	}
}

// progress returns the current progress. No field of a later result is lower.
func (c *cuts) progress() progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.progressLocked()
}

func (c *cuts) progressLocked() progress {
	if len(c.mu.open) > 0 {
		return progress{c.mu.open[0].seq, c.mu.open[0].before, c.mu.overflows}
	}
	return progress{c.mu.next, c.mu.end, c.mu.overflows}
}

// finish sets the end to the end of the file. Every cut must have been added.
func (c *cuts) finish(end Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.end = end
}

// saved records the number in the progress file.
func (c *cuts) saved(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.savedLocked(seq)
}

func (c *cuts) savedLocked(seq uint64) {
	c.mu.saved = seq
	c.wakeLocked()
}

func (c *cuts) wakeLocked() {
	close(c.mu.freed)
	c.mu.freed = make(chan struct{})
}
