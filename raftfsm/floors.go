package raftfsm

import "github.com/countd/countd/engine"

// Floors has the floors of a keyspace's columns, by number. A nil *Floors has none.
type Floors struct {
	has uint64 // bit n: column n has one
	at  [engine.ColumnsMax]int64
}

// FloorsOf returns the floors of columns given by name, or nil if there are none. A
// column's position is its number.
func FloorsOf(columns []string, byName map[string]int64) *Floors {
	if len(byName) == 0 {
		return nil
	}
	f := &Floors{}
	for i, name := range columns {
		if floor, has := byName[name]; has {
			f.has |= 1 << i
			f.at[i] = floor
		}
	}
	return f
}

// Of returns the floor of a column, and whether it has one.
func (f *Floors) Of(column uint8) (int64, bool) {
	if f == nil || f.has&(1<<column) == 0 {
		return 0, false
	}
	return f.at[column], true
}
