package members

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// scrubKeys is the number of keys, in a few blocks, that Scrub reads between two calls of read.
const scrubKeys = 2048

// Verify runs a Scrub at full speed.
func (g *Group) Verify() error { return g.Scrub(func(int) error { return nil }) }

// Scrub reads all sets of a group as they are now. The store has each pair in three orders of keys.
// Scrub returns an ErrDamaged unless the pairs of each order have the number and the digest in the
// group's state. Entries may be applied meanwhile. After each step of a few blocks, Scrub calls
// read with the number of bytes; if read fails, Scrub stops and returns its error. Data that is
// removed during a Scrub stays on disk until the end of the Scrub.
func (g *Group) Scrub(read func(bytes int) error) error {
	done, err := g.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	if err := g.usable(); err != nil {
		return err
	}
	for {
		before := g.store.discards.Load()
		if err = g.scrub(read); !errors.Is(err, ErrDamaged) || g.store.discards.Load() == before {
			return err
		}
	}
}

func (g *Group) scrub(read func(bytes int) error) error {
	g.store.writes.RLock()
	g.mu.Lock()
	v, err := g.openLocked()
	g.mu.Unlock()
	g.store.writes.RUnlock()
	if err != nil {
		return err
	}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		v.releaseLocked()
	}()
	if err := v.check(v.at, v.state, read); err != nil {
		return err
	}
	err = each(v.disk, v.log.kind(keyOutcome), func(_, value []byte) (bool, error) {
		_, err := parseOutcome(value)
		return true, err
	})
	if err != nil {
		return err
	}
	all, err := v.kept()
	for _, k := range all {
		if err := v.check(k.at, k.state, read); err != nil {
			return fmt.Errorf("part %d of the split at entry %d: %w", k.part, k.split, err)
		}
	}
	return err
}

// check returns an ErrDamaged unless the pairs under a prefix have the number and the digest of want, in each order. It
// reads the deleted rows too.
func (v *View) check(at prefix, want State, read func(bytes int) error) error {
	for _, kind := range [...]byte{keyMember, keyTime, keyOf} {
		sum, err := v.sum(at, kind, read)
		if err != nil {
			return err
		}
		if err := sum.check(want); err != nil {
			return fmt.Errorf("order %c: %w", kind, err)
		}
	}
	_, err := readDead(v.disk, at)
	return err
}

// sum returns the number and the digest of the pairs under a prefix in one order of keys.
func (v *View) sum(of prefix, kind byte, read func(bytes int) error) (s State, err error) {
	prefix := of.kind(kind)
	it, err := v.disk.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: scarce.PrefixEnd(prefix)})
	if err != nil {
		return s, damaged(err)
	}
	var pause error
	pace := pace{it: it, read: read}
	for valid := it.First(); valid && err == nil && pause == nil; valid = it.Next() {
		var p Pair
		var at Stamp
		p, at, err = parseKey(kind, it.Key())
		s.Add(p, at)
		pause = pace.key()
	}
	if err = damaged(errors.Join(err, it.Error())); err == nil && pause == nil {
		pause = pace.end()
	}
	return s, errors.Join(err, damaged(it.Close()), pause)
}

// pace calls read after each step of a few blocks.
type pace struct {
	it      *pebble.Iterator
	read    func(bytes int) error
	keys    int
	counted uint64 // bytes that read was called with
}

// key counts a key. It calls read if a step ends.
func (p *pace) key() error {
	if p.keys++; p.keys%scrubKeys > 0 {
		return nil
	}
	return p.end()
}

// end calls read with the bytes since the last call.
func (p *pace) end() error {
	before := p.counted
	p.counted = p.it.Stats().InternalStats.BlockBytes
	return p.read(int(p.counted - before))
}

func parseKey(kind byte, key []byte) (p Pair, at Stamp, err error) {
	if kind == keyMember {
		return parsePair(key)
	}
	of, column, line, err := parseLine(key)
	if p = (Pair{Row: of, Member: line.ID, Column: column}); kind == keyOf {
		p.Row, p.Member = p.Member, p.Row
	}
	return p, line.At, err
}
