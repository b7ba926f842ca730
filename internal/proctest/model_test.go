package proctest

import (
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestModelTellsHistoriesApart checks which histories the checker accepts and which it refuses.
func TestModelTellsHistoriesApart(t *testing.T) {
	at := func(call, end int64, in asked, out told) porcupine.Operation {
		return operation(0, in, call, out, end)
	}
	value := func(n int64) told { return told{true, n} }
	read := asked{verb: get}
	for _, tc := range []struct {
		name string
		ops  []porcupine.Operation
		want bool
	}{
		{"one after the other", []porcupine.Operation{at(0, 1, asked{add, 5}, value(5)), at(2, 3, read, value(5))}, true},
		{"a read before any write", []porcupine.Operation{at(0, 1, read, value(0))}, true},
		{"a stale read", []porcupine.Operation{at(0, 1, asked{add, 5}, value(5)), at(2, 3, read, value(0))}, false},
		{"a read beside a write", []porcupine.Operation{at(0, 4, asked{add, 5}, value(5)), at(2, 3, read, value(0))}, true},
		{"reads that go back", []porcupine.Operation{
			at(0, 9, asked{add, 5}, value(5)), at(1, 2, read, value(5)), at(3, 4, read, value(0)),
		}, false},
		{"a write that is lost", []porcupine.Operation{
			at(0, 1, asked{add, 5}, value(5)), at(2, 3, asked{add, 1}, value(1)),
		}, false},
		{"a write that counts twice", []porcupine.Operation{at(0, 1, asked{add, 5}, told{}), at(2, 3, read, value(10))}, false},
		{"a write without an answer that happened late", []porcupine.Operation{
			at(0, math.MaxInt64, asked{add, 5}, told{}), at(2, 3, read, value(0)), at(4, 5, read, value(5)),
		}, true},
		{"a write without an answer that never happened", []porcupine.Operation{
			at(0, math.MaxInt64, asked{add, 5}, told{}), at(2, 3, read, value(0)),
		}, true},
		{"a write without an answer that came undone", []porcupine.Operation{
			at(0, math.MaxInt64, asked{add, 5}, told{}), at(2, 3, read, value(5)), at(4, 5, read, value(0)),
		}, false},
		{"a set", []porcupine.Operation{at(0, 1, asked{add, 5}, value(5)), at(2, 3, asked{set, 2}, value(2)), at(4, 5, read, value(2))}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := porcupine.CheckOperations(countModel, tc.ops); got != tc.want {
				t.Errorf("explained: %v, want %v", got, tc.want)
			}
		})
	}
}
