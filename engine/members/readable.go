package members

import (
	"bytes"
	"errors"
	"slices"

	"github.com/countd/countd/internal/scarce"
)

// Readable reads the blocks on disk that Apply will read to join or leave pairs and to delete rows.
// If it cannot read one, it returns an ErrDamaged. A leader calls Readable before it proposes. So
// it proposes no entry that it cannot apply, and Apply finds the blocks in the cache. Readable
// skips data that is only in memory. Unless damage was found, it also skips pairs that the filter
// reports absent. After damage, Apply may have no filter, and so read a damaged block even for such
// pairs. Readable may sort pairs. Any goroutine may call it.
func (g *Group) Readable(pairs []Pair, rows []uint64) error {
	done, err := g.begin()
	if err != nil {
		return err
	}
	defer done()
	if len(pairs) > 0 {
		err = g.pairsReadable(pairs)
	}
	if err == nil && len(rows) > 0 {
		err = g.rowsReadable(rows)
	}
	return damaged(err)
}

func (g *Group) pairsReadable(pairs []Pair) error {
	var f *filter
	if !g.store.knowsDamage() {
		f = g.known.now.Load()
	}
	if !slices.ContainsFunc(pairs, f.mayHave) {
		return nil
	}
	l, err := g.lookup(true)
	if err != nil {
		return err
	}
	slices.SortFunc(pairs, Pair.compare) // adjacent keys are in the same block
	for i := 0; i < len(pairs) && err == nil; i++ {
		if f.mayHave(pairs[i]) {
			_, err = l.stamp(pairs[i])
		}
	}
	return errors.Join(err, l.it.Close())
}

func (g *Group) rowsReadable(rows []uint64) error {
	all := g.at.kind(keyTime)
	it, err := g.store.iterate(all, scarce.PrefixEnd(all), true)
	if err != nil {
		return err
	}
	for i := 0; i < len(rows) && err == nil; i++ {
		prefix := g.at.number(keyTime, rows[i])
		valid := it.SeekGE(prefix)
		for n := 0; n < purgedAtOnce && valid && bytes.HasPrefix(it.Key(), prefix); n++ {
			valid = it.Next()
		}
		err = it.Error() // before the next seek clears it
	}
	return errors.Join(err, it.Close())
}
