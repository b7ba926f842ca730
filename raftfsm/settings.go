package raftfsm

import (
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
)

// Settings holds the settings of a keyspace's columns, by number. A nil *Settings has no settings.
type Settings struct {
	of [column.Count]struct {
		has uint64 // bit n: column n has a value
		at  [engine.ColumnsMax]int64
	}
}

// SettingsOf converts settings by name to settings by number. The number of a column is its index
// in columns. If no column has a setting, SettingsOf returns nil.
func SettingsOf(columns []string, byName column.Settings[int64]) (s *Settings) {
	for _, which := range column.All() {
		for i, name := range columns {
			if value, has := byName.Get(which, name); has {
				if s == nil {
					s = &Settings{}
				}
				s.of[which].has |= 1 << i
				s.of[which].at[i] = value
			}
		}
	}
	return s
}

// Of returns the value of a setting of a column, and whether the column has one.
func (s *Settings) Of(which column.Setting, number uint8) (int64, bool) {
	if s == nil || s.of[which].has&(1<<number) == 0 {
		return 0, false
	}
	return s.of[which].at[number], true
}
