package cluster

import (
	"reflect"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/raftfsm/catalog"
)

func TestPlannedSteps(t *testing.T) {
	group := uint32(3)
	for name, test := range map[string]struct {
		step Step
		want client.PlanStep
	}{
		"place": {
			Place{Group: group, Name: "posts/2", Was: []string{"a", "b"}, Target: []string{"b", "c"}, Reason: "why"},
			client.PlanStep{Step: "place", Group: &group, Name: "posts/2", Add: []string{"c"}, Remove: []string{"a"}, Reason: "why"},
		},
		"transfer": {
			Transfer{Group: group, Name: "posts/2", From: "a", To: "b", Reason: "why"},
			client.PlanStep{Step: "transfer", Group: &group, Name: "posts/2", From: "a", To: "b", Reason: "why"},
		},
		"state": {
			SetNodeState{Node: "a", State: catalog.NodeLeaving, Reason: "why"},
			client.PlanStep{Step: "set_node_state", Node: "a", State: "leaving", Reason: "why"},
		},
		"remove":  {RemoveNode{Node: "a", Reason: "why"}, client.PlanStep{Step: "remove_node", Node: "a", Reason: "why"}},
		"version": {RaiseVersion{Version: 2, Reason: "why"}, client.PlanStep{Step: "raise_version", Version: 2, Reason: "why"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planned(test.step); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
