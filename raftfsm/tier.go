package raftfsm

import "fmt"

// freezeSegmentsMax is how many segments become generations with one sync: some
// 160,000 rows, of which copies are in memory meanwhile.
const freezeSegmentsMax = 16

// Freeze moves rows out of memory that old says may go, by the range of their keys,
// and that were not written to since the call before; and writes out anew what has
// changed of those that are cold. It goes on until nothing is left, proceed says
// no, or on an error. It returns how many rows it wrote.
func (c *Counters) Freeze(old func(first, last uint64) bool, proceed func() bool) (rows int, err error) {
	if c.cold == nil {
		return 0, nil
	}
	c.tiering.Lock()
	table := c.Table()
	idle := table.Watch(old)
	c.tiering.Unlock()
	for len(idle) > 0 && proceed() {
		n := min(len(idle), freezeSegmentsMax)
		c.tiering.Lock()
		wrote := 0
		if c.Table() == table { // else it was restored, and is looked at anew
			wrote, err = table.Freeze(c.cold, idle[:n])
		}
		c.tiering.Unlock()
		if err != nil {
			return rows, fmt.Errorf("cannot move rows out of memory: %w", err)
		}
		rows, idle = rows+wrote, idle[n:]
	}
	return rows, nil
}

// Seal packs the rows of one segment tighter in memory: the next from a key on that
// does not fill any more since it was called for that key before, see
// engine.Table.Seal. It returns how many rows, the key to go on from, and false when
// it has looked at all.
func (c *Counters) Seal(from uint64) (rows int, next uint64, more bool) {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	return c.Table().Seal(from)
}

// Warm brings cold rows back into memory, from a key on, a few segments at a time.
// It returns the key to go on from, and false when there are none left.
func (c *Counters) Warm(from uint64) (next uint64, more bool, err error) {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	return c.Table().Warm(from, freezeSegmentsMax)
}
