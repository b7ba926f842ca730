package shard

import (
	"context"
	"testing"

	"github.com/hashicorp/raft"
)

// A leader asks the others how far they are only when one of them is to go: asked
// twice a second for each group, they would cost an idle node more than all else.
func TestSettledMembersAreNotAsked(t *testing.T) {
	r := newReplicas(t, LogStoreBoltDB)
	leader := r.groups[r.leader(t, -1)]
	var all []member
	for _, cfg := range r.cfgs {
		all = append(all, member{cfg.id(), cfg.Mux.Addr().String()})
	}
	asked := 0
	behind := func(context.Context, raft.ServerID) (uint64, error) { asked++; return 1 << 40, nil }
	for _, settled := range []struct {
		name           string
		target, others []member
		asks           bool
	}{
		{"all have a vote", all, nil, false},
		{"one is to go", all[:2], nil, true},
		{"one is to lose its vote", all[:2], all[2:], true},
	} {
		asked = 0
		step, err := leader.membersStep(t.Context(), settled.target, settled.others, behind)
		if err != nil || step != "" {
			t.Errorf("%s: %q, %v, though nobody has caught up", settled.name, step, err)
		}
		if (asked > 0) != settled.asks {
			t.Errorf("%s: asked %d times", settled.name, asked)
		}
	}
}
