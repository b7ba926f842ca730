package members

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// pairFilter is a filter of the pairs in a file. It leaves out lists, because most lists that are
// read exist.
type pairFilter struct {
	bloom.FilterPolicy
}

// Name implements pebble.FilterPolicy.
func (pairFilter) Name() string { return "countd.members.pairs" }

// MayContain implements pebble.FilterPolicy.
func (f pairFilter) MayContain(kind pebble.FilterType, filter, key []byte) bool {
	return len(key) == 0 || key[0] != keyMember || f.FilterPolicy.MayContain(kind, filter, key)
}

// NewWriter implements pebble.FilterPolicy.
func (f pairFilter) NewWriter(kind pebble.FilterType) pebble.FilterWriter {
	return pairFilterWriter{f.FilterPolicy.NewWriter(kind)}
}

type pairFilterWriter struct {
	pebble.FilterWriter
}

// AddKey implements pebble.FilterWriter.
func (w pairFilterWriter) AddKey(key []byte) {
	if key[0] == keyMember {
		w.FilterWriter.AddKey(key)
	}
}
