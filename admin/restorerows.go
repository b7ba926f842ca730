package admin

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// leftOut replaces the number of a column that was dropped before the snapshot.
const leftOut = -1

// placesOf returns, for each column of a snapshot, its number in the keyspace or leftOut.
func placesOf(k *shard.Keyspace, names []string) ([]int, error) {
	if len(names) > engine.ColumnsMax {
		return nil, &errs.ArgumentError{Field: "columns", Problem: fmt.Sprintf("%d names, more than %d", len(names), engine.ColumnsMax)}
	}
	if names == nil {
		names = k.Columns
		if i := slices.Index(names, ""); i >= 0 {
			names = names[:i] // from the first dropped column on, a number may mean another column than in the snapshot
		}
	}
	places := make([]int, len(names))
	for i, name := range names {
		places[i] = leftOut
		if name == "" {
			continue
		}
		if places[i] = k.Column(name); places[i] < 0 {
			return nil, &errs.ArgumentError{Field: "columns", Problem: fmt.Sprintf("keyspace %s has no column %q", k.Name, name)}
		}
		if slices.Contains(names[:i], name) {
			return nil, &errs.ArgumentError{Field: "columns", Problem: fmt.Sprintf("%q is there twice", name)}
		}
	}
	return places, nil
}

// movesColumns reports whether a column has another number here than in the snapshot.
func movesColumns(places []int) bool {
	for column, place := range places {
		if place != column {
			return true
		}
	}
	return false
}

// rows adds rows of a table to the next writes.
func (r *restore) rows(table raftfsm.Table, p *engine.Page) error {
	if table == unread.Cursors {
		return r.cursors(p)
	}
	if !r.byIDs && !movesColumns(r.places) {
		return r.page(rows.Counts, p)
	}
	for i, key := range p.IDs {
		row := p.Row(i)
		id, at, here, err := r.place(key)
		if err != nil {
			return err
		}
		r.changed.Digest -= engine.RowDigest(key, row)
		if !here {
			r.changed.Rows--
			continue
		}
		var moved [engine.ColumnsMax]int64
		for column, count := range row {
			switch {
			case count == 0:
			case column >= len(r.places):
				return r.hasColumn(key, column)
			case r.places[column] != leftOut:
				moved[r.places[column]] = count
			}
		}
		r.changed.Digest += engine.RowDigest(at, moved[:])
		cells := r.cellsOf(moved[:])
		if len(cells) == 0 {
			r.changed.Rows--
			continue
		}
		if err := r.add(rows.Counts, engine.Op{ID: id, Kind: engine.OpSet, Cells: cells}); err != nil {
			return err
		}
	}
	return nil
}

// cellsOf returns the counts of a row that are not 0. It uses the memory of the next write.
func (r *restore) cellsOf(row []int64) []engine.Cell {
	first := len(r.next.cells)
	for column, count := range row {
		if count != 0 {
			r.next.cells = append(r.next.cells, engine.Cell{Column: uint8(column), Value: count})
		}
	}
	return r.next.cells[first:len(r.next.cells):len(r.next.cells)]
}

// hasColumn returns the error for a row with an unknown column.
func (r *restore) hasColumn(key uint64, column int) error {
	return fmt.Errorf("row %d has column %d, the snapshot is said to have %d columns for keyspace %s", r.idOf(key), column, len(r.places), r.keyspace.Name)
}

// page adds rows to the next writes, with the column numbers of the snapshot. It does not keep the
// page.
func (r *restore) page(table raftfsm.Table, p *engine.Page) error {
	columns := engine.ColumnsMax // rows of cursors may have more columns than the keyspace has
	if table == rows.Counts {
		columns = len(r.places)
	}
	for i, key := range p.IDs {
		row := p.Row(i)
		for column := columns; column < len(row); column++ {
			if row[column] != 0 {
				return r.hasColumn(key, column)
			}
		}
		cells := r.cellsOf(row)
		if len(cells) == 0 {
			continue // all cursors of the row were omitted, or the row is of another shard
		}
		id, _, _, err := r.place(key)
		if err != nil {
			return err
		}
		if err := r.add(table, engine.Op{ID: id, Kind: engine.OpSet, Cells: cells}); err != nil {
			return err
		}
	}
	return nil
}

// place returns the id of a key of the snapshot, and its key in this shard. If the id belongs to another shard, here is
// false in a restore by ids, and otherwise place returns an error.
func (r *restore) place(key uint64) (id, at uint64, here bool, err error) {
	id = r.idOf(key)
	number, at := r.route.KeyOf(id)
	here = number == r.shard
	switch fits := id/r.divisor == key; {
	case r.byIDs && !(fits && r.mayHave(id)):
		return 0, 0, false, fmt.Errorf("%w: row %d is not of %s with divisor %d, which must be the number of shards with which its keyspace "+
			"was created, or 1 by hash", errWrongIDs, key, r.from, r.divisor)
	case !r.byIDs && !(fits && here && at == key):
		return 0, 0, false, fmt.Errorf("%w: row %d is of another number of shards", ErrBadSnapshot, key)
	}
	return id, at, here, nil
}

// mayHave reports whether the shard of the snapshot may have an id. The divisor of a snapshot comes from outside, so a wrong
// one would put rows under wrong ids. Such ids soon are not of the shard. With divisor 1, the keyspace may be one by
// hash; then all ids must be of the shard in the same way.
func (r *restore) mayHave(id uint64) bool {
	r.spreads = slices.DeleteFunc(r.spreads, func(by raftfsm.Route) bool {
		of, _ := by.KeyOf(id)
		return of != int(r.from.Residue)
	})
	return len(r.spreads) > 0
}

// idOf returns the id of a key of the snapshot.
func (r *restore) idOf(key uint64) uint64 { return key*r.divisor + uint64(r.from.Residue)%r.divisor }
