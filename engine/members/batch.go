package members

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/internal/scarce"
)

const (
	// purgedAtOnce bounds the pairs of one deleted row that the entry of its deletion removes.
	// Later steps remove the other pairs.
	purgedAtOnce = 256
	// purgedInEntry bounds the pairs of all rows that one entry deletes, and so the delay of the entries
	// after it.
	purgedInEntry = 4096
)

// Batch applies the member ops of one log entry. The caller first calls Touch, TouchRow and
// TouchDead for all ops, and then Read. Except for Touch, these calls read the disk. If they
// succeed, the caller calls Join, Leave, DeleteRow, Purge or Clear for each op in order, and then
// Commit.
//
// If the store already has the entry, the Batch replays it: each op gets the same result as before,
// and no set changes.
type Batch struct {
	group  *Group
	before State
	stamp  Stamp // the highest stamp issued so far
	now    Stamp // the lowest stamp of the entry's time

	index    uint64
	replayed bool
	outcome  outcome
	ops      int // number of Joins and Leaves so far

	last    change // the change that Undo undoes
	pairs   map[Pair]*pair
	touched []Pair // the pairs that Read reads
	rows    map[uint64]*deletedRow
	removed int // number of pairs that TouchRow has read
	dead    deadPairs
	purges  bool
	cleared bool
}

// pair is the state of one pair that the entry touches.
type pair struct {
	was, is Stamp // the stamp before the entry, and now; 0 if the pair is absent
}

// change records the effect of one op on a pair.
type change struct {
	of  *pair
	was Stamp
}

// deletedRow is a row that the entry deletes.
type deletedRow struct {
	to    Stamp       // pairs with stamps up to this one are gone; 0 before DeleteRow
	first []placement // the first pairs of the row
	more  bool        // the row has more pairs
}

// deadPairs holds pairs of rows that earlier entries deleted.
type deadPairs struct {
	first []placement
	rows  []uint64 // rows whose pairs are all in first
}

// Begin returns a Batch for the entry at index. entryTime is the entry's time in Unix milliseconds.
// applied is the state after the last entry that the state machine has applied. While a restart
// replays the log, that state is older than the store's.
func (g *Group) Begin(applied State, index uint64, entryTime int64) (*Batch, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	b := &Batch{group: g, before: applied, index: index, stamp: applied.Stamp, now: StampOf(entryTime)}
	if b.replayed = index <= g.state.Index; !b.replayed {
		if applied != g.state {
			return nil, fmt.Errorf("%w: entry %d follows the sets of entry %d, the disk has those of entry %d", ErrDamaged, index, applied.Index, g.state.Index)
		}
		return b, nil
	}
	done, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	found := false
	if b.outcome, found, err = g.outcome(index); err != nil {
		return nil, err
	}
	if found && b.outcome.previous != applied.Index {
		return nil, fmt.Errorf("%w: entry %d follows entry %d, the sets are of entry %d", ErrDamaged, index, b.outcome.previous, applied.Index)
	}
	if !found {
		b.outcome.after = applied
	}
	return b, nil
}

// After each read of pairs, a Batch checks that the group is still usable. Discard may remove a
// group's keys together with a damaged file, and then pairs seem absent. But before it does that,
// it makes the group unusable.

// outcome reads the outcome of an entry.
func (g *Group) outcome(index uint64) (o outcome, found bool, err error) {
	o, found, err = readOutcome(g.store.present(), g.log, index)
	return o, found, errors.Join(err, g.usable())
}

// Touch registers the pair of a Join or Leave for Read.
func (b *Batch) Touch(p Pair) {
	if b.replayed || b.pairs[p] != nil {
		return
	}
	if b.pairs == nil {
		b.pairs = map[Pair]*pair{}
	}
	b.pairs[p] = &pair{}
	b.touched = append(b.touched, p)
}

// Read reads the touched pairs from disk.
func (b *Batch) Read() error {
	if len(b.touched) == 0 || b.group.state.Pairs == 0 {
		return nil
	}
	done, err := b.group.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	all, f := len(b.touched), b.group.known.now.Load()
	b.touched = slices.DeleteFunc(b.touched, func(p Pair) bool { return !f.mayHave(p) })
	b.group.store.countLookups(all, len(b.touched))
	if len(b.touched) == 0 {
		return b.group.usable()
	}
	l, err := b.group.lookup(false)
	if err != nil {
		return err
	}
	slices.SortFunc(b.touched, Pair.compare) // adjacent keys are in the same block
	for i := 0; i < len(b.touched) && err == nil; i++ {
		at := b.pairs[b.touched[i]]
		at.was, err = l.stamp(b.touched[i])
		at.is = at.was
	}
	return damaged(errors.Join(err, l.it.Close(), b.group.usable()))
}

// TouchRow reads the first pairs of a row for DeleteRow.
func (b *Batch) TouchRow(row uint64) error {
	if b.replayed || b.rows[row] != nil {
		return nil
	}
	d := &deletedRow{}
	if b.group.state.Pairs > 0 {
		var err error
		n := min(purgedAtOnce, purgedInEntry-b.removed)
		if d.first, d.more, err = b.group.firstOf(row, stampMax, n); err != nil {
			return err
		}
		b.removed += len(d.first)
	}
	if b.rows == nil {
		b.rows = map[uint64]*deletedRow{}
	}
	b.rows[row] = d
	return nil
}

// TouchDead reads the first n pairs of rows that earlier entries deleted, for Purge.
func (b *Batch) TouchDead(n int) error {
	if b.replayed {
		return nil
	}
	b.dead = deadPairs{}
	for _, row := range slices.Sorted(maps.Keys(b.group.dead)) {
		first, more, err := b.group.firstOf(row, b.group.dead[row], n-len(b.dead.first))
		if err != nil {
			return err
		}
		b.dead.first = append(b.dead.first, first...)
		if more {
			return nil
		}
		b.dead.rows = append(b.dead.rows, row)
	}
	return nil
}

// firstOf returns the first n pairs of a row whose stamps are at most the argument to. more reports
// whether the row has more such pairs.
func (g *Group) firstOf(row uint64, to Stamp, n int) (first []placement, more bool, err error) {
	done, err := g.store.db.Use()
	if err != nil {
		return nil, false, err
	}
	defer done()
	from := g.at.number(keyTime, row)
	it, err := g.store.iterate(from, scarce.PrefixEnd(from), false)
	if err != nil {
		return nil, false, damaged(err)
	}
	for valid := it.First(); valid && err == nil; {
		var column uint8
		var line Entry
		if _, column, line, err = parseLine(it.Key()); err != nil {
			break
		}
		if line.At > to { // the newest pairs of a column come first: skip those with later stamps
			key := g.at.byTime(keyTime, row, column, Entry{At: to})
			valid = it.SeekGE(key[:])
			continue
		}
		if more = len(first) == n; more {
			break
		}
		first = append(first, placement{Pair{Row: row, Member: line.ID, Column: column}, line.At})
		valid = it.Next()
	}
	return first, more, damaged(errors.Join(err, it.Error(), it.Close(), g.usable()))
}

// deadTo returns the stamp up to which the pairs of a row count as deleted.
func (b *Batch) deadTo(row uint64) Stamp {
	if d := b.rows[row]; d != nil && d.to > 0 {
		return d.to
	}
	if b.cleared {
		return 0
	}
	return b.group.dead[row]
}

// next returns the stamp for a new pair. If copied is not 0, next uses copied. Otherwise it uses
// the next unused stamp of the entry's millisecond or a later one or, at the bound stampsAhead, the
// last stamp again. In each case, the result is above the stamp of the row's deletion.
func (b *Batch) next(row uint64, copied Stamp) Stamp {
	s := copied
	if s == 0 {
		if s = max(b.now, b.stamp); s == b.stamp && (s < b.now+stampsAhead || s&(1<<stampShift-1) < 1<<stampShift-1) {
			s++
		}
	}
	s = min(max(s, b.deadTo(row)+1), stampMax)
	b.stamp = max(b.stamp, s)
	return s
}

// Join adds a pair and reports whether it was absent. The pair gets the stamp copied, or a new
// stamp if copied is 0.
func (b *Batch) Join(p Pair, copied Stamp) (changes bool) {
	return b.judge(p, func(at *pair, present bool) bool {
		if !present {
			at.is = b.next(p.Row, copied)
		}
		return !present
	})
}

// Leave removes a pair, and reports whether it was present.
func (b *Batch) Leave(p Pair) (changes bool) {
	return b.judge(p, func(at *pair, present bool) bool {
		if present {
			at.is = 0
		}
		return present
	})
}

func (b *Batch) judge(p Pair, apply func(at *pair, present bool) bool) (changes bool) {
	op := b.ops
	b.ops++
	b.last.of = nil
	if b.replayed {
		return b.outcome.bit(op)
	}
	at := b.pairs[p]
	was := at.is
	if !apply(at, was > b.deadTo(p.Row)) {
		return false
	}
	b.last = change{at, was}
	b.outcome.set(op)
	return true
}

// Undo reverts the last Join or Leave if it changed its set. The outcome keeps the op's bit: in a
// replay the table refuses the op again.
func (b *Batch) Undo() {
	if b.last.of != nil {
		b.last.of.is = b.last.was
	}
}

// DeleteRow removes all pairs of a row.
func (b *Batch) DeleteRow(row uint64) {
	if b.replayed || b.group.state.Pairs == 0 && len(b.pairs) == 0 {
		return
	}
	b.stamp = min(max(b.now, b.stamp)+1, stampMax-1)
	b.rows[row].to = b.stamp
}

// Purge removes the pairs that TouchDead has read, which are of rows that earlier entries deleted.
func (b *Batch) Purge() { b.purges = !b.replayed }

// Clear removes all pairs.
func (b *Batch) Clear() {
	if b.replayed {
		return
	}
	b.cleared = true
	for _, at := range b.pairs {
		at.was, at.is = 0, 0
	}
	for _, d := range b.rows {
		*d = deletedRow{}
	}
}
