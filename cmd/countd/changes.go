package main

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
)

// settle is the time for which a clusterWatch collects groups for one log line. A group that elects
// another leader within this time counts as moved, not as a group without a leader.
const settle = 3 * time.Second

// startMax is how long a new group may be without a leader before the group is reported: its nodes
// may still start, or replay its log.
const startMax = 30 * time.Second

// clusterWatch logs changes between two views. Its methods must not be called concurrently.
type clusterWatch struct {
	logger *slog.Logger
	begun  bool                // Update has compared a first view
	nodes  map[string]viewNode // nodes of the last view, by key
	groups map[string]*group

	moved, regained batch
	votersWere      []string // VotersFull of the last view

	// When this node began to refuse writes, for each cause; zero while it accepts them.
	disk, memory, voters time.Time
}

// group is the watch's state of a viewGroup.
type group struct {
	leader  string    // last known leader; "" if there was none yet
	missing time.Time // since when the group has had no leader; zero while it has one
	logged  bool      // a line has named the group
}

// batch gathers groups for one line.
type batch struct {
	names    []string
	since    time.Time      // earliest time at which a group was added
	from, to map[string]int // number of groups by old and by new leader
	longest  time.Duration  // longest time without a leader
}

// newClusterWatch returns a watch that logs to logger.
func newClusterWatch(logger *slog.Logger) *clusterWatch {
	return &clusterWatch{logger: logger, nodes: map[string]viewNode{}, groups: map[string]*group{}}
}

// Update compares a view with the previous one and logs the changes. From the first view, it logs
// only the problems.
func (w *clusterWatch) Update(v clusterView) {
	w.checkNodes(&v)
	w.checkGroups(&v)
	w.checkSpace(&v)
	w.begun = true
}

func (w *clusterWatch) checkNodes(v *clusterView) {
	now := map[string]viewNode{}
	for _, n := range v.Nodes {
		now[n.Key] = n
		was, known := w.nodes[n.Key]
		if w.begun && !known {
			w.logger.Info("node joined the cluster", "node", n.Name, "key", n.Key)
		}
		if known && was.State != n.State {
			w.logger.Info("node changed its state", "node", n.Name, "state", n.State, "was", was.State)
		}
		switch {
		case n.dead() && !was.dead():
			w.logDeath(v, n)
		case !n.dead() && was.dead():
			names, _ := v.degraded()
			w.logger.Info("node is back", "node", n.Name, "gone_for", length(v.At.Sub(was.DeadSince)), "degraded_groups", len(names))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.nodes)) {
		if _, in := now[key]; !in {
			w.logger.Info("node was removed from the cluster", "node", w.nodes[key].Name, "key", key)
		}
	}
	w.nodes = now
}

func (w *clusterWatch) logDeath(v *clusterView, n viewNode) {
	names, stopped := v.degraded()
	args := []any{"node", n.Name, "since", stamp(n.DeadSince), "degraded_groups", len(names), "groups", few(names)}
	if stopped > 0 {
		args = append(args, "without_majority", stopped)
	}
	if at, never := v.Replaced(n.Key); never != "" {
		args = append(args, "replaced", "no: "+never)
	} else {
		args = append(args, "replaced_at", stamp(at))
	}
	if n.Stopped {
		w.logger.Info("node was stopped", args...)
		return
	}
	w.logger.Warn("node is dead", args...)
}

func (w *clusterWatch) checkGroups(v *clusterView) {
	here := map[string]bool{}
	for _, g := range v.Groups {
		if g.Here {
			here[g.Name] = true
			w.checkGroup(v, g)
		}
	}
	for name := range w.groups {
		if !here[name] {
			delete(w.groups, name)
		}
	}
	w.logMissing(v)
	w.logRegained(v)
	w.logMoved(v)
}

func (w *clusterWatch) checkGroup(v *clusterView, g viewGroup) {
	s := w.groups[g.Name]
	if s == nil {
		s = &group{}
		w.groups[g.Name] = s
	}
	if g.Leader == "" {
		if s.missing.IsZero() {
			s.missing = v.At
		}
		return
	}
	switch {
	case s.logged:
		w.regained.add(v.At, g.Name, s.leader, g.Leader)
		w.regained.longest = max(w.regained.longest, v.At.Sub(s.missing))
	case s.leader != "" && s.leader != g.Leader:
		w.moved.add(v.At, g.Name, s.leader, g.Leader)
	}
	*s = group{leader: g.Leader}
}

// logMissing logs the groups without a leader once one of them has had none for settle or, if it is
// new, for startMax.
func (w *clusterWatch) logMissing(v *clusterView) {
	w.logWithout(v, "groups lost their leader and take no writes", settle, func(s *group) bool { return s.leader != "" })
	w.logWithout(v, "groups have no leader yet and take no writes", startMax, func(s *group) bool { return s.leader == "" })
}

func (w *clusterWatch) logWithout(v *clusterView, msg string, after time.Duration, of func(*group) bool) {
	var lost batch
	dead, votersDead := v.deadKeys(), map[string]bool{}
	for _, g := range v.Groups {
		s := w.groups[g.Name]
		if s == nil || s.missing.IsZero() || s.logged || !of(s) {
			continue
		}
		lost.add(s.missing, g.Name, s.leader, "")
		for _, key := range g.Voters {
			if dead[key] {
				votersDead[v.nameOf(key)] = true
			}
		}
	}
	if len(lost.names) == 0 || v.At.Sub(lost.since) < after {
		return
	}
	for _, name := range lost.names {
		w.groups[name].logged = true
	}
	args := []any{"count", len(lost.names), "groups", few(lost.names), "since", stamp(lost.since)}
	if leaders := v.tally(lost.from); leaders != "" {
		args = append(args, "last_leaders", leaders)
	}
	if len(votersDead) > 0 {
		args = append(args, "dead_voters", strings.Join(slices.Sorted(maps.Keys(votersDead)), ", "))
	}
	w.logger.Warn(msg, args...)
}

func (w *clusterWatch) logRegained(v *clusterView) {
	still := 0
	for _, s := range w.groups {
		if s.logged {
			still++
		}
	}
	b := &w.regained
	if len(b.names) == 0 || still > 0 && v.At.Sub(b.since) < settle {
		return
	}
	w.logger.Info("groups have a leader again", "count", len(b.names), "groups", few(b.names),
		"leaders", v.tally(b.to), "after", length(b.longest), "without_leader", still)
	*b = batch{}
}

func (w *clusterWatch) logMoved(v *clusterView) {
	b := &w.moved
	if len(b.names) == 0 || v.At.Sub(b.since) < settle {
		return
	}
	w.logger.Info("groups changed their leader", "count", len(b.names), "groups", few(b.names), "from", v.tally(b.from), "to", v.tally(b.to))
	*b = batch{}
}

// add adds a group to the batch, unless the batch already has the group. b.since becomes the
// earliest at.
func (b *batch) add(at time.Time, name, from, to string) {
	if len(b.names) == 0 {
		*b = batch{since: at, from: map[string]int{}, to: map[string]int{}}
	}
	if at.Before(b.since) {
		b.since = at
	}
	if slices.Contains(b.names, name) {
		return
	}
	b.names = append(b.names, name)
	b.from[from]++
	b.to[to]++
}

func (w *clusterWatch) checkSpace(v *clusterView) {
	w.refuses(&w.disk, v.At, v.Disk.Full, "writes", "the disk of this node is at its reserve", "the disk of this node has room", v.Disk.args())
	w.refuses(&w.memory, v.At, v.Memory.Full, "writes of new rows", "this node is at its memory limit", "this node has memory", v.Memory.args())
	// The node checks its groups one after the other, so a view may list only some of the full
	// groups. Two equal views in a row list all of them.
	if slices.Equal(v.VotersFull, w.votersWere) {
		var args []any
		if len(v.VotersFull) > 0 {
			args = []any{"count", len(v.VotersFull), "groups", few(v.VotersFull)}
		}
		w.refuses(&w.voters, v.At, len(v.VotersFull) > 0, "writes to groups led here", "the disks of most voters are full", "the disks of most voters have room", args)
	}
	w.votersWere = v.VotersFull
}

func (r viewSpace) args() []any { return []any{"needed_bytes", r.NeededBytes, "has_bytes", r.HasBytes} }

// refuses logs a line if writes have stopped or resumed since the last call. what names the kind of
// writes. stoppedAt stores when they stopped, or the zero time.
func (w *clusterWatch) refuses(stoppedAt *time.Time, at time.Time, stopped bool, what, whyStopped, whyResumed string, args []any) {
	switch {
	case stopped && stoppedAt.IsZero():
		*stoppedAt = at
		w.logger.Warn(what+" stopped", append([]any{"why", whyStopped}, args...)...)
	case !stopped && !stoppedAt.IsZero():
		w.logger.Info(what+" resumed", append([]any{"why", whyResumed, "stopped_for", length(at.Sub(*stoppedAt))}, args...)...)
		*stoppedAt = time.Time{}
	}
}
