package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/countd/countd/raftfsm/catalog"
)

// Step is one of Place, Transfer, SetNodeState, RemoveNode and RaiseVersion. The steps of a plan
// may be carried out in any order, and any of them may fail. The next plan contains the steps that
// are still necessary.
type Step interface {
	fmt.Stringer // step and reason, as one line for people
	Why() string // only the reason
	step()
}

// Reason is the reason for a step, as text for people.
type Reason string

// Why returns the reason.
func (r Reason) Why() string { return string(r) }

// Place changes the target of a group: it replaces, adds or removes one member.
type Place struct {
	Group  uint32   `json:"group"`
	Name   string   `json:"name"` // name of the group: keyspace and shard, such as "posts/3"
	Was    []string `json:"was"`  // target of the group when this step was planned
	Target []string `json:"target"`
	Reason `json:"reason"`
}

// Transfer moves the leadership of a group.
type Transfer struct {
	Group  uint32 `json:"group"`
	Name   string `json:"name"`
	From   string `json:"from"` // leader when this step was planned; if another node leads, the step does nothing
	To     string `json:"to"`
	Reason `json:"reason"`
}

type SetNodeState struct {
	Node   string            `json:"node"`
	State  catalog.NodeState `json:"state"`
	Reason `json:"reason"`
}

// RemoveNode removes an empty node from the cluster.
type RemoveNode struct {
	Node   string `json:"node"`
	Reason `json:"reason"`
}

// RaiseVersion raises the cluster version.
type RaiseVersion struct {
	Version int `json:"version"`
	Reason  `json:"reason"`
}

func (Place) step()        {}
func (Transfer) step()     {}
func (SetNodeState) step() {}
func (RemoveNode) step()   {}
func (RaiseVersion) step() {}

func (s Place) String() string {
	var change []string
	for _, key := range s.Target {
		if !slices.Contains(s.Was, key) {
			change = append(change, "+"+key)
		}
	}
	for _, key := range s.Was {
		if !slices.Contains(s.Target, key) {
			change = append(change, "-"+key)
		}
	}
	return fmt.Sprintf("place group %d (%s) %s: %s", s.Group, s.Name, strings.Join(change, " "), s.Reason)
}

func (s Transfer) String() string {
	return fmt.Sprintf("transfer group %d (%s) from %s to %s: %s", s.Group, s.Name, s.From, s.To, s.Reason)
}

func (s SetNodeState) String() string {
	return fmt.Sprintf("set node %s to %s: %s", s.Node, s.State, s.Reason)
}

func (s RemoveNode) String() string { return fmt.Sprintf("remove node %s: %s", s.Node, s.Reason) }

func (s RaiseVersion) String() string {
	return fmt.Sprintf("raise cluster version to %d: %s", s.Version, s.Reason)
}
