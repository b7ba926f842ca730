package members

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// Partition returns the part of a row. Equal values of a Partition must return equal parts.
type Partition interface{ Of(row uint64) int }

// stepPairs is the number of pairs that one step of a Parting copies, which takes some milliseconds.
const stepPairs = 1024

// copies are the copies of a group's sets that a Parting makes. A nil copies has none. Group.stepping guards it.
//
// Invariant: the home of a part has exactly the pairs of the part up to the frontier, as they are now in the group.
type copies struct {
	by     Partition
	homes  []uint32 // of the parts
	states []State  // of the homes: only Digest and Pairs are set
	last   Pair     // the frontier, if begun is set
	begun  bool
	whole  bool // all pairs are copied
	split  bool // Split uses them: a preparation neither ends nor replaces them any more
}

// step moves the frontier by at most n pairs. It adds their copies to a batch.
func (c *copies) step(from reader, at prefix, batch *pebble.Batch, n int) error {
	first := at.kind(keyMember)
	end := scarce.PrefixEnd(first)
	if c.begun {
		last := at.member(c.last, stampMax) // a pair has one stamp at most
		first = append(last[:], 0)
	}
	err := eachFrom(from, first, end, func(key, _ []byte) (bool, error) {
		pair, stamp, err := parsePair(key)
		if err != nil {
			return false, err
		}
		c.last, c.begun = pair, true
		n--
		return n > 0, c.put(batch, placement{pair, stamp})
	})
	c.whole = err == nil && n > 0
	return err
}

// check returns an ErrDamaged unless the copies add up to the given state.
func (c *copies) check(of State) error {
	sum := State{}
	for _, s := range c.states {
		sum.Pairs += s.Pairs
		sum.Digest += s.Digest
	}
	return sum.check(of)
}

// copied returns the part of a pair, or false if the pair is behind the frontier.
func (c *copies) copied(of Pair) (part int, is bool) {
	if c == nil || !c.whole && (!c.begun || of.compare(c.last) > 0) {
		return 0, false
	}
	return c.by.Of(of.Row), true
}

// put adds a pair to the home of its part, in a batch, unless the pair is behind the frontier.
func (c *copies) put(to *pebble.Batch, of placement) error {
	part, is := c.copied(of.Pair)
	if !is {
		return nil
	}
	c.states[part].Add(of.Pair, of.at)
	return home(c.homes[part]).putPair(to, of)
}

// remove is the reverse of put.
func (c *copies) remove(to *pebble.Batch, of placement) error {
	part, is := c.copied(of.Pair)
	if !is {
		return nil
	}
	c.states[part].remove(of)
	return home(c.homes[part]).removePair(to, of)
}

// putPair adds a pair to a batch, in all three orders.
func (at prefix) putPair(to *pebble.Batch, p placement) error {
	key := at.member(p.Pair, p.at)
	list := at.byTime(keyTime, p.Row, p.Column, Entry{p.Member, p.at})
	of := at.byTime(keyOf, p.Member, p.Column, Entry{p.Row, p.at})
	return errors.Join(to.Set(key[:], nil, nil), to.Set(list[:], nil, nil), to.Set(of[:], nil, nil))
}

// removePair is the reverse of putPair.
func (at prefix) removePair(to *pebble.Batch, p placement) error {
	key := at.member(p.Pair, p.at)
	list := at.byTime(keyTime, p.Row, p.Column, Entry{p.Member, p.at})
	of := at.byTime(keyOf, p.Member, p.Column, Entry{p.Row, p.at})
	return errors.Join(to.Delete(key[:], nil), to.Delete(list[:], nil), to.Delete(of[:], nil))
}
