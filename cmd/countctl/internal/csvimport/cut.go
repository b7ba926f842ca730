package csvimport

import (
	"context"
	"sync"

	"github.com/countd/countd/client"
)

// cut is a run of a file's rows that is added by one request.
type cut struct {
	seq       uint64
	before    Position // where it begins
	after     Position // where it ends
	sums      client.Sums
	ids       []client.ID // of the rows in sums, one a row
	overflows Overflows   // of its answer
	acked     bool        // guarded by the lock of cuts
}

func (c *cut) rows() int64 { return c.after.Rows - c.before.Rows }

func (c *cut) add(inc increment) {
	c.sums.Add(inc.id, inc.deltas)
	c.ids = append(c.ids, inc.id)
}

// progress is what a progress file says of cuts: the lowest number that is not
// added, where its cut begins, every row before being added or rejected, and
// which of those rows did not fit.
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

// cuts knows which cuts of a file are added, and how far a progress file on the
// disk is behind. They are acknowledged in any order.
//
// Invariant: no cut is let through whose number lies client.Window or more
// above the lowest that a run begun from the progress file would send again. So
// whatever is sent again is still in the server's window.
type cuts struct {
	mu struct {
		sync.Mutex
		open      []*cut    // let through and not all acknowledged, oldest first
		next      uint64    // number of the next cut
		end       Position  // where the next cut begins
		overflows Overflows // of the cuts below those that are open
		saved     uint64    // lowest open number that the progress file knows
		room      chan struct{}
	}
	behind chan struct{} // has a token when the progress file is well behind
	kept   bool          // there is a progress file
}

func newCuts(from progress, kept bool) *cuts {
	c := &cuts{behind: make(chan struct{}, 1), kept: kept}
	c.mu.next, c.mu.end, c.mu.overflows, c.mu.saved = from.seq, from.position, from.overflows, from.seq
	c.mu.room = make(chan struct{})
	return c
}

// letThrough numbers a cut that is complete, and waits until it may be sent or
// ctx ends.
func (c *cuts) letThrough(ctx context.Context, next *cut) error {
	for {
		room := c.admit(next)
		if room == nil {
			return nil
		}
		select {
		case c.behind <- struct{}{}:
		default: // the saver knows
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// admit lets a cut through if the window allows; else it returns what is closed
// when it is worth another try.
func (c *cuts) admit(next *cut) (room <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.next >= c.mu.saved+client.Window {
		return c.mu.room
	}
	next.seq = c.mu.next
	c.mu.next++
	c.mu.end = next.after
	c.mu.open = append(c.mu.open, next)
	return nil
}

// ack notes that a cut is added.
func (c *cuts) ack(done *cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done.acked = true
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
		default: // the saver knows
		}
	}
}

// progress returns what may be written of the cuts now. No part of it ever
// falls.
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

// finish moves the end to that of the file, when every cut of it is added.
func (c *cuts) finish(end Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.end = end
}

// saved notes what the progress file says.
func (c *cuts) saved(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.savedLocked(seq)
}

func (c *cuts) savedLocked(seq uint64) {
	c.mu.saved = seq
	close(c.mu.room)
	c.mu.room = make(chan struct{})
}
