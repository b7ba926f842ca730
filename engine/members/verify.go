package members

import (
	"fmt"
)

// Verify reads all sets of a group as they are now, and returns an ErrDamaged unless both
// orders have the same pairs and these are those of the state. Entries may be applied
// meanwhile.
func (g *Group) Verify() error {
	done, err := g.store.use()
	if err != nil {
		return err
	}
	defer done()
	g.mu.Lock()
	v, err := g.openLocked()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		v.releaseLocked()
	}()
	for _, kind := range [...]byte{keyMember, keyTime, keyOf} {
		sum, err := v.sum(kind)
		if err != nil {
			return err
		}
		if sum.Digest != v.state.Digest || sum.Pairs != v.state.Pairs {
			return fmt.Errorf("%w: order %c has %d pairs, digest %016x, want %d, %016x", ErrDamaged, kind,
				sum.Pairs, sum.Digest, v.state.Pairs, v.state.Digest)
		}
	}
	return nil
}

// sum returns number and digest of the pairs in one order.
func (v *View) sum(kind byte) (s State, err error) {
	err = each(v.disk, v.at.kind(kind), func(key, _ []byte) (bool, error) {
		p, at, err := parseKey(kind, key)
		s.Add(p, at)
		return true, err
	})
	return s, err
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
