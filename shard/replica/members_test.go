package replica

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// raft refuses a change of members if another change was committed after the leader checked this
// one.
func TestChangeOfOtherMembersThanChecked(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	leader := r.groups[r.leader(t, -1)]
	var all []Member
	for _, cfg := range r.cfgs {
		all = append(all, Member{cfg.ID(), cfg.Mux.Addr().String()})
	}
	eventually(t, "the members are in force", func() bool { return leader.ConfigurationInForce() != nil })
	before := len(leader.Configuration().Servers)
	target := slices.DeleteFunc(slices.Clone(all), func(m Member) bool { return m.ID == r.others(r.leader(t, -1))[0].ID() })
	changed := false
	step, err := leader.MembersStep(t.Context(), target, nil, func(context.Context, raft.ServerID) (uint64, error) {
		if !changed {
			changed = true
			mustDo(t, leader.raft.AddNonvoter("another", "127.0.0.1:1", 0, memberTimeout).Error())
		}
		return 0, nil
	})
	if servers := leader.Configuration().Servers; err == nil || !strings.HasPrefix(step, "removed ") || len(servers) != before+1 {
		t.Errorf("%q: %v; the members are %v", step, err, servers)
	}
}

// A leader asks the other members for their progress only when one of them is to leave. Twice a
// second for each group, these calls would cost an idle node more than all its other work.
func TestSettledMembersAreNotAsked(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	leader := r.groups[r.leader(t, -1)]
	var all []Member
	for _, cfg := range r.cfgs {
		all = append(all, Member{cfg.ID(), cfg.Mux.Addr().String()})
	}
	asked := 0
	behind := func(context.Context, raft.ServerID) (uint64, error) { asked++; return 1 << 40, nil }
	for _, settled := range []struct {
		name           string
		target, others []Member
		asks           bool
	}{
		{"all have a vote", all, nil, false},
		{"one is to go", all[:2], nil, true},
		{"one is to lose its vote", all[:2], all[2:], true},
	} {
		asked = 0
		step, err := leader.MembersStep(t.Context(), settled.target, settled.others, behind)
		if err != nil || step != "" {
			t.Errorf("%s: %q, %v, though nobody has caught up", settled.name, step, err)
		}
		if (asked > 0) != settled.asks {
			t.Errorf("%s: asked %d times", settled.name, asked)
		}
	}
}

// A voter leaves only if a majority of the others has caught up, or lags no more than that voter.
// If that voter does not answer, a majority of the others must answer.
func TestCanLose(t *testing.T) {
	for name, c := range map[string]struct {
		current, late string
		lost          raft.ServerID
		want          bool
	}{
		"all have caught up":             {"abcd", "", "d", true},
		"the one to go is down":          {"abc", "", "d", true},
		"two of the three that are left": {"abd", "", "d", true},
		"one of the three that are left": {"ad", "", "d", false},
		"a non-voter does not count":     {"ade", "", "d", false},
		"one of the others is behind":    {"ad", "b", "d", false},
		"the one to go is behind":        {"ab", "d", "d", true},
		"both are behind":                {"a", "bd", "d", true},
		"it is down, another is behind":  {"a", "b", "d", true},
	} {
		servers := []raft.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}, {ID: "e", Suffrage: raft.Nonvoter}}
		lags := map[raft.ServerID]uint64{}
		for _, id := range c.current {
			lags[raft.ServerID(id)] = 0
		}
		for _, id := range c.late {
			lags[raft.ServerID(id)] = CaughtUpEntries + 1
		}
		if got := canLose(servers, c.lost, lags); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Of two surplus voters, the one that is far behind leaves first. If the other one left first, the
// leader could commit nothing until the one that is behind had caught up.
func TestLaggardLeavesFirst(t *testing.T) {
	servers := []raft.Server{{ID: "l", Address: "l"}, {ID: "a", Address: "a"}, {ID: "b", Address: "b"}, {ID: "s1", Address: "s1"}, {ID: "s2", Address: "s2"}}
	target := []Member{{"l", "l"}, {"a", "a"}, {"b", "b"}}
	for _, leaves := range []raft.ServerID{"s2", "s1"} {
		step := NextStep("l", servers, target, nil, func(id raft.ServerID) (uint64, error) {
			switch id {
			case "b":
				return 0, errors.New("away")
			case "s2":
				return 10_000_000, nil
			}
			return 0, nil
		})
		if step.Do != StepRemove || step.Member.ID != leaves {
			t.Errorf("%s is to leave: %+v", leaves, step)
		}
		servers = slices.DeleteFunc(servers, func(s raft.Server) bool { return s.ID == leaves })
	}
}

// A joining replica may have the address of a voter. The leader removes that voter only if the
// others can do without it. The voter may still be alive, as an earlier replica on the same node.
func TestAddressIsFreedOnlyWithAMajority(t *testing.T) {
	at := func(id raft.ServerID, suffrage raft.ServerSuffrage) raft.Server {
		return raft.Server{ID: id, Address: raft.ServerAddress(NodeOf(id)), Suffrage: suffrage}
	}
	target := []Member{{"a#1", "a"}, {"b#2", "b"}, {"c#9", "c"}}
	for name, c := range map[string]struct {
		suffrage raft.ServerSuffrage
		up       []raft.ServerID
		want     StepKind
	}{
		"the other voter answers":      {raft.Voter, []raft.ServerID{"b#2"}, StepRemove},
		"it does not":                  {raft.Voter, nil, StepNone},
		"only the one to go does":      {raft.Voter, []raft.ServerID{"c#3"}, StepNone},
		"the one to go does not count": {raft.Nonvoter, nil, StepRemove},
	} {
		servers := []raft.Server{at("a#1", raft.Voter), at("b#2", raft.Voter), at("c#3", c.suffrage)}
		step := NextStep("a#1", servers, target, nil, func(id raft.ServerID) (uint64, error) {
			if slices.Contains(c.up, id) {
				return 0, nil
			}
			return 0, errors.New("away")
		})
		if step.Do != c.want || c.want == StepRemove && step.Member.ID != "c#3" {
			t.Errorf("%s: %+v", name, step)
		}
	}
}

// If a joining replica has the leader's own address, the leader hands over, because it never
// removes its own vote.
func TestLeaderDoesNotRemoveItself(t *testing.T) {
	servers := []raft.Server{{ID: "a#1", Address: "a"}, {ID: "b#2", Address: "b"}, {ID: "c#3", Address: "c"}}
	target := []Member{{"d#4", "a"}, {"b#2", "b"}, {"c#3", "c"}}
	lag := map[raft.ServerID]uint64{"b#2": CaughtUpEntries + 1}
	behind := func(id raft.ServerID) (uint64, error) {
		if id == "d#4" {
			return 0, errors.New("not there")
		}
		return lag[id], nil
	}
	if step := NextStep("a#1", servers, target, nil, behind); step.Do != StepHandOver || step.Member.ID != "c#3" {
		t.Errorf("%+v", step)
	}
	lag["c#3"] = CaughtUpEntries + 1
	if step := NextStep("a#1", servers, target, nil, behind); step.Do != StepNone {
		t.Errorf("nobody has caught up: %+v", step)
	}
	if step := NextStep("b#2", servers, target, nil, behind); step.Do != StepNone {
		t.Errorf("without a#1 nothing commits until c#3 has caught up: %+v", step)
	}
	lag["c#3"] = 0
	if step := NextStep("b#2", servers, target, nil, behind); step.Do != StepRemove || step.Member.ID != "a#1" {
		t.Errorf("%+v", step)
	}
	if step := NextStep("a#1", servers, target[:1], nil, behind); step.Do != StepHandOver || step.Member.ID != "c#3" {
		t.Errorf("nobody of the target can lead yet: %+v", step)
	}
}

// A voter that lacks few entries stays as long as the group would otherwise wait for a voter that
// lacks many.
func TestNearLaggardStays(t *testing.T) {
	lags := map[raft.ServerID]uint64{"s1": CaughtUpEntries + 1, "a#1": CaughtUpEntries + 1, "s2": 10_000_000, "b": 10_000_000, "a": 0}
	for name, c := range map[string]struct {
		voters string
		away   raft.ServerID
		target []Member
		stays  raft.ServerID
	}{
		"two surplus voters":          {"l a b s1 s2", "b", []Member{{"l", "l"}, {"a", "a"}, {"b", "b"}}, "s1"},
		"a member's address is taken": {"l a#1 b", "", []Member{{"l", "l"}, {"a#2", "a"}, {"b", "b"}}, "a#1"},
	} {
		var servers []raft.Server
		for _, id := range strings.Fields(c.voters) {
			addr, _, _ := strings.Cut(id, "#")
			servers = append(servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(addr)})
		}
		step := NextStep("l", servers, c.target, nil, func(id raft.ServerID) (uint64, error) {
			lag, is := lags[id]
			if !is || id == c.away {
				return 0, errors.New("it does not answer")
			}
			return lag, nil
		})
		if step.Member.ID == c.stays {
			t.Errorf("%s: %+v", name, step)
		}
	}
}
