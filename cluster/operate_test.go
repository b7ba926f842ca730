package cluster

import (
	"reflect"
	"testing"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm/catalog"
)

func TestPlannedSteps(t *testing.T) {
	for name, test := range map[string]struct {
		step Step
		want admin.PlannedStep
	}{
		"place": {
			Place{Group: 3, Name: "posts/2", Was: []string{"a", "b"}, Target: []string{"b", "c"}, Reason: "why"},
			admin.PlannedStep{Kind: "place", Group: 3, Name: "posts/2", Add: []string{"c"}, Remove: []string{"a"}, Reason: "why"},
		},
		"transfer": {
			Transfer{Group: 3, Name: "posts/2", From: "a", To: "b", Reason: "why"},
			admin.PlannedStep{Kind: "transfer", Group: 3, Name: "posts/2", From: "a", To: "b", Reason: "why"},
		},
		"state": {
			SetNodeState{Node: "a", State: catalog.NodeLeaving, Reason: "why"},
			admin.PlannedStep{Kind: "set_node_state", Node: "a", State: "leaving", Reason: "why"},
		},
		"remove":  {RemoveNode{Node: "a", Reason: "why"}, admin.PlannedStep{Kind: "remove_node", Node: "a", Reason: "why"}},
		"version": {RaiseVersion{Version: 2, Reason: "why"}, admin.PlannedStep{Kind: "raise_version", Raise: 2, Reason: "why"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planned(test.step); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
