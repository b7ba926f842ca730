package raftfsm

import (
	"context"
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
)

// checkTable returns an error unless each row that a scan finds is found by its id too, and rows and digest of
// the table are those of its rows. Tests of package engine verify the structure.
func checkTable(table *engine.Table) (err error) {
	rows, digest := uint64(0), uint64(0)
	failed := table.Scan(0, engine.ColumnsMax, func(p *engine.Page) bool {
		var row [engine.ColumnsMax]int64
		for i, id := range p.IDs {
			if err = table.ReadCold(context.Background(), id, row[:]); err == nil && !slices.Equal(row[:], p.Row(i)) {
				err = fmt.Errorf("row %d is %v in a scan, and reads %v", id, p.Row(i), row)
			}
			if err != nil {
				return false
			}
			digest += engine.RowDigest(id, p.Row(i))
		}
		rows += uint64(len(p.IDs))
		return true
	})
	if err == nil && failed == nil && (rows != table.Stats().Rows || digest != table.Digest()) {
		err = fmt.Errorf("%d rows of digest %016x, the table has %d and %016x", rows, digest, table.Stats().Rows, table.Digest())
	}
	if err == nil {
		err = failed
	}
	return err
}
