// Package column owns the settings of a keyspace's columns, with their names and JSON. It also owns
// the reasons for which columns refuse ops, and their texts in each protocol. The catalog, the API,
// clients, backups and countctl read the same types, so a new setting or reason needs changes only
// in this file and in the code that applies it. The package never defines how a setting acts.
//
// Invariant: each function treats all settings alike, and all reasons alike.
package column

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Settings maps, for each setting, the names of columns to the values of the setting. Columns
// without the setting are absent. V is int64. In a change of settings V is *int64, and nil removes
// the setting of a column.
type Settings[V any] struct {
	// Floors: no increment lowers a count below the floor of its column.
	Floors map[string]V `json:"floors,omitempty"`
}

// Setting is the number of a setting.
type Setting uint8

// The settings.
const (
	Floor Setting = iota
	Count         // the number of settings
)

// texts is read only. sums is set if increments of one sign count like one increment of their sum.
var texts = [Count]struct {
	name, effect, sign string
	sums               bool
}{
	Floor: {name: "floor", effect: "no increment lowers a count below the floor", sign: ">=", sums: true},
}

func (s Setting) String() string { return texts[s].name }

// Refusal is the reason for which a column refuses an op.
type Refusal uint8

// The refusals. Nodes send each other these numbers.
const (
	Overflow Refusal = iota
	Refusals         // the number of refusals
)

// Reason describes a refusal.
type Reason struct {
	Code    string // error code of the HTTP API
	Problem string // what is wrong with the op's value
	Short   string // reason for which a message is rejected
	Redis   string // error of the Redis protocol
}

// reasons is read only.
var reasons = [Refusals]Reason{
	Overflow: {
		Code:    "overflow",
		Problem: "the sum is not a signed 64-bit integer",
		Short:   "the sum overflows",
		Redis:   "ERR increment or decrement would overflow",
	},
}

// Reason returns the description of a refusal.
func (r Refusal) Reason() Reason { return reasons[r] }

// IsRefusal reports whether an error code of the HTTP API is the code of a refusal. Servers remember a
// refusal under the key or number of its write.
func IsRefusal(code string) bool {
	return slices.ContainsFunc(reasons[:], func(r Reason) bool { return r.Code == code })
}

// Effect returns what the setting does, for the help of a flag.
func (s Setting) Effect() string { return texts[s].effect }

// values returns the field of a setting.
func (s *Settings[V]) values(which Setting) *map[string]V {
	return [Count]*map[string]V{Floor: &s.Floors}[which]
}

// Column is a column to add to a keyspace or to change. Settings that the Column does not name stay
// unchanged.
type Column struct {
	Name    string
	Floor   *int64 // nil leaves the floor as it is
	NoFloor bool   // removes the floor; Floor is ignored
}

// change points to the two fields of a Column that change one setting.
type change struct {
	value  **int64
	remove *bool
}

func (c *Column) change(which Setting) change {
	return [Count]change{Floor: {&c.Floor, &c.NoFloor}}[which]
}

// All returns all settings.
func All() []Setting {
	all := make([]Setting, Count)
	for i := range all {
		all[i] = Setting(i)
	}
	return all
}

// Named returns columns with these names, which change no setting.
func Named(names ...string) []Column {
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return columns
}

// Set changes a setting of the column; a nil value removes it.
func (c *Column) Set(which Setting, value *int64) {
	ch := c.change(which)
	*ch.value, *ch.remove = value, value == nil
}

// MarshalJSON writes the name alone if no setting changes.
func (c Column) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(c.Name)
	named := false
	for _, which := range All() {
		ch := c.change(which)
		if err != nil || *ch.value == nil && !*ch.remove {
			continue
		}
		if !named {
			text, named = append([]byte(`{"name":`), text...), true
		}
		value := "null"
		if !*ch.remove {
			value = fmt.Sprint(**ch.value)
		}
		text = fmt.Appendf(text, `,%q:%s`, which.String(), value)
	}
	if named {
		text = append(text, '}')
	}
	return text, err
}

// Changes returns the names of columns, and the changes of their settings.
func Changes(columns []Column) (names []string, changes Settings[*int64]) {
	for i := range columns {
		c := &columns[i]
		names = append(names, c.Name)
		for _, which := range All() {
			switch ch := c.change(which); {
			case *ch.remove:
				changes.Put(which, c.Name, nil)
			case *ch.value != nil:
				changes.Put(which, c.Name, *ch.value)
			}
		}
	}
	return names, changes
}

// Columns returns the columns with the given names, and with their settings.
func Columns(names []string, of Settings[int64]) []Column {
	columns := Named(names...)
	for i := range columns {
		for _, which := range All() {
			if value, has := of.Get(which, columns[i].Name); has {
				columns[i].Set(which, &value)
			}
		}
	}
	return columns
}

// Get returns the value of a setting of a column, and whether the column has one.
func (s *Settings[V]) Get(which Setting, column string) (value V, has bool) {
	value, has = (*s.values(which))[column]
	return value, has
}

// Put sets the value of a setting of a column.
func (s *Settings[V]) Put(which Setting, column string, value V) {
	values := s.values(which)
	if *values == nil {
		*values = map[string]V{}
	}
	(*values)[column] = value
}

// Sums reports whether increments of a column with the same sign always count like one increment of
// their sum, as they do with a floor. If not, only the shard knows what an increment has counted.
func (s *Settings[V]) Sums(column string) bool {
	for which := range Count {
		if _, has := s.Get(which, column); has && !texts[which].sums {
			return false
		}
	}
	return true
}

// Check returns an error if a column with a setting is not among the columns.
func (s *Settings[V]) Check(columns []string) error {
	for _, which := range All() {
		for _, column := range slices.Sorted(maps.Keys(*s.values(which))) {
			if !slices.Contains(columns, column) {
				return fmt.Errorf("a %s of column %q, which is not there", which, column)
			}
		}
	}
	return nil
}

// After returns the settings after changes. The result shares the unchanged settings with the
// argument was.
func After(was Settings[int64], changes Settings[*int64]) Settings[int64] {
	for _, which := range All() {
		changed := *changes.values(which)
		if len(changed) == 0 {
			continue
		}
		now := maps.Clone(*was.values(which))
		for column, value := range changed {
			if delete(now, column); value == nil {
				continue
			}
			if now == nil {
				now = map[string]int64{}
			}
			now[column] = *value
		}
		if len(now) == 0 {
			now = nil
		}
		*was.values(which) = now
	}
	return was
}

// Removed returns the change that removes all settings of a column.
func Removed(column string) (changes Settings[*int64]) {
	for _, which := range All() {
		changes.Put(which, column, nil)
	}
	return changes
}

// Equal reports whether two sets of settings are the same.
func Equal(a, b Settings[int64]) bool {
	for _, which := range All() {
		if !maps.Equal(*a.values(which), *b.values(which)) {
			return false
		}
	}
	return true
}

// Has reports whether a has all settings of column that b has, with the same values.
func Has(a, b Settings[int64], column string) bool {
	for _, which := range All() {
		want, wanted := b.Get(which, column)
		if is, has := a.Get(which, column); wanted && (!has || is != want) {
			return false
		}
	}
	return true
}

// Text returns the name of a column with its settings, such as like>=0.
func Text(name string, of Settings[int64]) string {
	text := name
	for _, which := range All() {
		if value, has := of.Get(which, name); has {
			text += fmt.Sprint(texts[which].sign, value)
		}
	}
	return text
}
