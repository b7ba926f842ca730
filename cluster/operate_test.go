package cluster

import (
	"reflect"
	"testing"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm/catalog"
)

func TestPlannedSteps(t *testing.T) {
	group := uint32(3)
	for name, test := range map[string]struct {
		step Step
		want clientadmin.PlanStep
	}{
		"place": {
			Place{Group: group, Name: "posts/2", Was: []string{"a", "b"}, Target: []string{"b", "c"}, Reason: "why"},
			clientadmin.PlanStep{Step: "place", Group: &group, Name: "posts/2", Add: []string{"c"}, Remove: []string{"a"}, Reason: "why"},
		},
		"transfer": {
			Transfer{Group: group, Name: "posts/2", From: "a", To: "b", Reason: "why"},
			clientadmin.PlanStep{Step: "transfer", Group: &group, Name: "posts/2", From: "a", To: "b", Reason: "why"},
		},
		"state": {
			SetNodeState{Node: "a", State: catalog.NodeLeaving, Reason: "why"},
			clientadmin.PlanStep{Step: "set_node_state", Node: "a", State: "leaving", Reason: "why"},
		},
		"remove":  {RemoveNode{Node: "a", Reason: "why"}, clientadmin.PlanStep{Step: "remove_node", Node: "a", Reason: "why"}},
		"version": {RaiseVersion{Version: 2, Reason: "why"}, clientadmin.PlanStep{Step: "raise_version", Version: 2, Reason: "why"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planned(test.step); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
