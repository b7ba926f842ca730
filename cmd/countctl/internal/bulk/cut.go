package bulk

import (
	"context"
	"slices"
	"sync"

	"github.com/countd/countd/client"
)

// cut is a range of rows of a file. One request adds all of its rows.
type cut struct {
	seq       uint64
	before    Position // position where the cut begins
	after     Position // position where the cut ends
	sums      client.Sums
	ids       []client.ID // id of each row that sums includes; an id may occur several times
	overflows Overflows   // rows of this cut whose sum did not fit an int64, from the server's answer
	acked     bool        // guarded by the mutex of cuts
}

func (c *cut) rows() int64 { return c.after.Rows - c.before.Rows }

func (c *cut) add(inc increment) {
	c.sums.Add(inc.id, inc.deltas)
	c.ids = append(c.ids, inc.id)
}

// progress is the part of a progress file that describes the cuts. seq is the lowest number of a
// cut that is not acknowledged. position is the start of that cut: every earlier row was added or
// rejected. overflows has the rows before position whose sum did not fit an int64.
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

// cuts tracks which cuts of a file are acknowledged, and the lowest unacknowledged number in the
// progress file. The server may acknowledge cuts in any order.
//
// Invariant: the number of an admitted cut is below saved + client.Window. A run that begins with
// the progress file repeats all cuts with the number saved or a higher one. So all of them are
// still in the server's window.
type cuts struct {
	mu struct {
		sync.Mutex
		open      []*cut        // admitted cuts, beginning at the oldest unacknowledged one
		next      uint64        // number of the next cut
		end       Position      // position where the next cut begins
		overflows Overflows     // overflows of the cuts before open[0]
		saved     uint64        // lowest unacknowledged number in the progress file
		freed     chan struct{} // closed and replaced when another cut may be admitted
	}
	behind chan struct{} // receives a token when the progress file should be saved at once
	kept   bool          // whether there is a progress file
}

func newCuts(from progress, kept bool) *cuts {
	c := &cuts{behind: make(chan struct{}, 1), kept: kept}
	c.mu.next, c.mu.end, c.mu.overflows, c.mu.saved = from.seq, from.position, from.overflows, from.seq
	c.mu.freed = make(chan struct{})
	return c
}

// letThrough waits until a complete cut may be sent, and sets its number. If ctx ends during the
// wait, it returns ctx's error.
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

// admit numbers a cut, adds the cut to open, and returns nil. If the window is full or an open cut
// must be applied first, it returns a channel instead. That channel is closed when another try may
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

// ack records that the server acknowledged a cut.
func (c *cuts) ack(done *cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done.acked = true
	c.wakeLocked() // wakes a cut that must be applied after this one
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

// progress returns the current progress. Its fields never decrease.
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

// finish sets the position after the last cut to the end of the file, past the rejected rows there.
// Every cut must have been acknowledged.
func (c *cuts) finish(end Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.end = end
}

// saved records that the progress file now has the number seq.
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
