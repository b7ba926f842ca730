package cluster

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// raftEntry is an entry of a raftWorld.
type raftEntry struct {
	term   uint64
	id     int    // equal ids are equal entries
	voters []bool // by node; nil unless the entry is a configuration
}

// raftWorld is the history of one group, by Raft's rules. Some of its nodes have not begun.
type raftWorld struct {
	t         *rapid.T
	logs      [][]raftEntry
	terms     []uint64
	first     []int // the first voters
	term, ids uint64
	leader    int // -1 for none
	committed []raftEntry
}

func newRaftWorld(t *rapid.T) *raftWorld {
	n := rapid.IntRange(3, 7).Draw(t, "nodes")
	w := &raftWorld{t: t, logs: make([][]raftEntry, n), terms: make([]uint64, n), leader: -1, term: 1}
	for i := range rapid.IntRange(1, min(5, n)).Draw(t, "first voters") {
		w.first = append(w.first, i)
	}
	return w
}

// initial is the entry with which a first voter begins.
func (w *raftWorld) initial() raftEntry {
	e := raftEntry{term: 1, voters: make([]bool, len(w.logs))}
	for _, i := range w.first {
		e.voters[i] = true
	}
	return e
}

// configurations returns the newest configuration of a log, and after it the one before.
func configurations(log []raftEntry) (all [][]bool) {
	for _, e := range slices.Backward(log) {
		if e.voters != nil && len(all) < 2 {
			all = append(all, e.voters)
		}
	}
	return all
}

func majorityOf(voters []bool, has func(int) bool) bool {
	all, with := 0, 0
	for i, votes := range voters {
		if votes {
			all++
			if has(i) {
				with++
			}
		}
	}
	return 2*with > all
}

// later reports whether a log ends later than another one.
func later(a, b []raftEntry) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) > len(b)
	}
	x, y := a[len(a)-1].term, b[len(b)-1].term
	return x > y || x == y && len(a) > len(b)
}

func (w *raftWorld) append(voters []bool) {
	w.ids++
	w.logs[w.leader] = append(slices.Clip(w.logs[w.leader]), raftEntry{term: w.term, id: int(w.ids), voters: voters})
}

// step makes one random step of the history.
func (w *raftWorld) step() {
	node := rapid.IntRange(0, len(w.logs)-1).Draw(w.t, "node")
	switch rapid.IntRange(0, 9).Draw(w.t, "step") {
	case 0, 1: // begin
		if slices.Contains(w.first, node) && len(w.logs[node]) == 0 {
			w.logs[node], w.terms[node] = []raftEntry{w.initial()}, 1
		}
	case 2: // elect
		granted := rapid.SliceOfN(rapid.Bool(), len(w.logs), len(w.logs)).Draw(w.t, "reached")
		votes := func(i int) bool {
			return i == node || granted[i] && len(w.logs[i]) > 0 && !later(w.logs[i], w.logs[node])
		}
		if c := configurations(w.logs[node]); len(c) > 0 && c[0][node] {
			w.term++
			for i := range w.logs {
				if c[0][i] && votes(i) {
					w.terms[i] = w.term
				}
			}
			if w.leader = -1; majorityOf(c[0], votes) {
				w.leader = node
				w.append(nil)
			}
		}
	case 3: // write
		if w.leader >= 0 {
			w.append(nil)
		}
	case 4: // change one voter, if the newest configuration and an entry of the term are committed
		if w.leader < 0 || len(w.committed) == 0 || w.committed[len(w.committed)-1].term != w.term {
			return
		}
		log := w.logs[w.leader]
		if slices.ContainsFunc(log[len(w.committed):], func(e raftEntry) bool { return e.voters != nil }) {
			return
		}
		next := slices.Clone(configurations(log)[0])
		if next[node] = !next[node]; node != w.leader {
			w.append(next)
		}
	default: // replicate
		if w.leader < 0 || node == w.leader || len(w.logs[node]) == 0 && slices.Contains(w.first, node) {
			return
		}
		from := w.logs[w.leader]
		log := from[:rapid.IntRange(0, len(from)).Draw(w.t, "entries")]
		same := 0
		for same < min(len(log), len(w.logs[node])) && log[same].id == w.logs[node][same].id && log[same].term == w.logs[node][same].term {
			same++
		}
		if w.terms[node] = w.term; same < len(log) {
			w.logs[node] = slices.Clone(log)
		}
		w.commit()
	}
}

// commit advances what is committed.
func (w *raftWorld) commit() {
	log := w.logs[w.leader]
	for n := len(log); n > len(w.committed); n-- {
		if log[n-1].term == w.term && majorityOf(configurations(log)[0], func(i int) bool {
			return len(w.logs[i]) >= n && w.logs[i][n-1].id == log[n-1].id && w.logs[i][n-1].term == w.term
		}) {
			w.committed = slices.Clone(log[:n])
			return
		}
	}
}

func (w *raftWorld) key(node int) string { return fmt.Sprintf("n%d.00000000", node) }

func (w *raftWorld) configuration(voters []bool) (c raft.Configuration) {
	for i, votes := range voters {
		if votes {
			c.Servers = append(c.Servers, raft.Server{ID: replica.RaftID(w.key(i), uint64(i+1))})
		}
	}
	return c
}

// survivors returns the nodes that survived, in the state in which OpenSurvivors finds them.
func (w *raftWorld) survivors(offline *replica.Offline, here []bool) *Survivors {
	p := catalog.Placement{FirstReplica: 1, NextReplica: uint64(len(w.logs) + 1), Replicas: map[string]uint64{}}
	for i := range w.logs {
		p.Replicas[w.key(i)] = uint64(i + 1)
	}
	for _, i := range w.first {
		p.Initial = append(p.Initial, w.key(i))
	}
	s := &Survivors{view: &catalog.View{Groups: map[uint32]catalog.Placement{1: p}}}
	for i, log := range w.logs {
		if !here[i] {
			continue
		}
		n := &survivor{DataDir: &DataDir{Identity: Identity{NodeID: fmt.Sprintf("n%d", i), Instance: "00000000"}, openedGroups: &openedGroups{}}, offline: offline}
		if len(log) > 0 {
			r := &replica.OfflineReplica{ID: replica.RaftID(w.key(i), uint64(i+1)), Number: uint64(i + 1), Term: w.terms[i], LastTerm: log[len(log)-1].term, LastIndex: uint64(len(log))}
			for _, voters := range slices.Backward(configurations(log)) {
				r.Configurations = append(r.Configurations, w.configuration(voters))
			}
			n.replicas = map[uint32]*replica.OfflineReplica{1: r}
		}
		s.nodes = append(s.nodes, n)
	}
	return s
}

// TestRecoverProperty plans the recovery of a group after random histories in which some nodes are
// lost:
//
//  1. Only the chosen voter can be elected among the survivors, even if others vote for another one.
//  2. The only voter's log has each committed entry that one survivor had, and the survivors' terms
//     are lower than that of its next entry.
//  3. A group that is left alone has a survivor that can be elected, and each of these has all
//     committed entries.
//  4. A group is lost only if no survivor has a log.
func TestRecoverProperty(t *testing.T) {
	offline, err := replica.OpenOffline(t.TempDir(), "none.00000000", nil)
	must.Do(t, err)
	defer func() { must.Do(t, offline.Close()) }()
	ended := map[string]int{}
	check := func(t *rapid.T) {
		w := newRaftWorld(t)
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			w.step()
		}
		here := rapid.SliceOfN(rapid.Bool(), len(w.logs), len(w.logs)).Draw(t, "here")
		g, err := w.survivors(offline, here).planGroup(RecoveredGroup{Group: 1})
		logs := map[int][]raftEntry{} // that the nodes have after their next start
		some := false
		for i, log := range w.logs {
			if !here[i] {
				continue
			}
			some = some || len(log) > 0
			if len(log) == 0 && slices.Contains(w.first, i) {
				log = []raftEntry{w.initial()}
			}
			if len(log) > 0 {
				logs[i] = log
			}
		}
		elected := func(except int) (all []int) { // the nodes that can be elected without a node
			for i, log := range logs {
				for _, voters := range configurations(log) {
					if i != except && voters[i] && majorityOf(voters, func(v int) bool { return v != except && logs[v] != nil && !later(logs[v], log) }) {
						all = append(all, i)
						break
					}
				}
			}
			return all
		}
		has := func(log []raftEntry, entry int) bool {
			return len(log) > entry && log[entry].id == w.committed[entry].id && log[entry].term == w.committed[entry].term
		}
		switch {
		case err != nil:
			ended["refused"]++
		case g.Node == "":
			ended["lost"]++
			if some {
				t.Fatalf("a group with a log is lost")
			}
		case g.Kept:
			ended["kept"]++
			leaders := elected(-1)
			if len(leaders) == 0 {
				t.Fatal("no survivor can be elected")
			}
			for _, i := range leaders {
				if len(w.committed) > 0 && !has(logs[i], len(w.committed)-1) {
					t.Fatalf("node %d can be elected without the committed entry %d", i, len(w.committed))
				}
			}
		default:
			ended["recovered"]++
			chosen := 0
			for w.key(chosen) != g.Node {
				chosen++
			}
			if others := elected(chosen); len(others) > 0 {
				t.Fatalf("beside node %d, nodes %v can be elected", chosen, others)
			}
			for i, log := range logs {
				if here[i] && w.terms[i] >= g.Term {
					t.Fatalf("node %d has term %d, the recovery %d", i, w.terms[i], g.Term)
				}
				for entry := range w.committed {
					if has(log, entry) && !has(logs[chosen], entry) {
						t.Fatalf("node %d has the committed entry %d, and the chosen node %d has not", i, entry+1, chosen)
					}
				}
			}
		}
	}
	for range 20 { // a world takes 30 µs
		rapid.Check(t, check)
	}
	t.Log(ended)
	for _, end := range []string{"lost", "kept", "recovered"} {
		if ended[end] == 0 {
			t.Errorf("no group was %s", end)
		}
	}
}
