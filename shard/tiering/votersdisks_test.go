package tiering

import (
	"testing"

	"github.com/hashicorp/raft"
)

func TestTooFewDisks(t *testing.T) {
	t.Parallel()
	three := []raft.ServerID{"a", "b", "c"}
	for _, test := range []struct {
		name   string
		voters []raft.ServerID
		full   map[string]bool // by node key: whether the disk is full; missing if the node did not answer
		want   bool
	}{
		{"all have free disk", three, map[string]bool{"a": false, "b": false, "c": false}, false},
		{"one is full", three, map[string]bool{"a": false, "b": true, "c": false}, false},
		{"two are full", three, map[string]bool{"a": false, "b": true, "c": true}, true},
		{"one is full, one away", three, map[string]bool{"a": false, "b": true}, true},
		{"two are away", three, map[string]bool{"a": false}, false},
		{"another node is full", three, map[string]bool{"a": false, "b": false, "c": false, "d": true}, false},
		{"one of two is full", three[:2], map[string]bool{"a": false, "b": true}, true},
	} {
		if got := tooFewDisks(test.voters, test.full); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
