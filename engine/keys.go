package engine

import (
	"fmt"
	"slices"
)

// keys restricts the ids of a table, or sends some of them to the tables of its parts. It never
// changes.
type keys struct {
	class  Class
	parted *parted // nil if no row is in a part
}

// nowhere is the directory of the ids that a table cannot have. Nobody writes to it.
var nowhere = func() *directory {
	d := newDirectory(1, nil)
	d.segs[0].Store(newSegment(newGeometry(bucketsMin, false, 0, allIDs, 0), bucketsMin, 1, 0))
	return d
}()

// dirOf returns the directory with the segment that owns id. d is the table's own directory.
func (k *keys) dirOf(d *directory, id uint64) *directory {
	switch {
	case !k.class.Has(id):
		return nowhere
	case k.parted == nil || !k.parted.has(id):
		return d
	}
	d = k.parted.tableOf(id).dir.Load()
	if d.keys != nil {
		return d.keys.dirOf(d, id)
	}
	return d
}

// check panics if an op may change a row that the table cannot have: the row would have the place of
// another row. Only a caller with a bug has such an op.
func (k *keys) check(ops []Op) {
	for i := range ops {
		if op := &ops[i]; !k.class.Has(op.ID) && (len(op.Cells) > 0 || op.Kind == OpDelete) {
			panic(fmt.Sprintf("op %d is on id %d, which is not %d mod %d", i, op.ID, k.class.Residue, k.class.Stride))
		}
	}
}

// Partition divides the ids of a table into parts. Implementations must be comparable.
type Partition interface {
	// Classes returns a class for each part. All ids of the part are in the class.
	Classes() []Class
	// Filters returns a Filter for each part. Of all ids, even ids that the parted table cannot have, it
	// selects those of the part.
	Filters() []Filter
	// Of returns the index of an id's part.
	Of(id uint64) int
}

// parted says which rows are in the tables of the parts. It never changes. The tables are ordinary
// ones, except that they share the Rises of the parted table. The mutex of the parted table guards
// their numbers of rows and their digests. Their own mutexes guard their segments. A table's mutex
// is acquired before those of its parts, and these in their order.
type parted struct {
	by     Partition
	tables []*Table // one for each part
	// The parts have all rows with ids below above or, if whole is set, all rows.
	above uint64
	whole bool
}

func (p *parted) has(id uint64) bool { return id < p.above || p.whole }

func (p *parted) tableOf(id uint64) *Table { return p.tables[p.by.Of(id)] }

// anyCold reports whether a part has rows on disk. p may be nil.
func (p *parted) anyCold() bool {
	return p != nil && slices.ContainsFunc(p.tables, func(t *Table) bool { return t.coldParts.Load() > 0 })
}

// lock and unlock acquire and release the mutexes of the parts.
func (p *parted) lock() {
	for _, table := range p.tables {
		table.mu.Lock()
	}
}

func (p *parted) unlock() {
	for _, table := range p.tables {
		table.unlock()
	}
}

// parted returns the parted rows of the directory's table, or nil.
func (d *directory) parted() *parted {
	if d.keys == nil {
		return nil
	}
	return d.keys.parted
}
