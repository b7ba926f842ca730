package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// The model has a parent and two children, each with replicas on two nodes. It splits the parent
// once, and the children adopt their parts. Before the Split, a node parts its sets in steps, between which
// entries are applied, and ends Partings. A node crashes at any byte that it writes, also in the
// middle of a step, a Split or an AdoptPart. Replicas restart from either of their stored snapshots, send
// and receive snapshots from both sides of the Split, abandon Loads, and are dropped. The model checks:
//
//  1. Each entry is judged as the ops on a map are, the first time and in each replay, on both
//     nodes, and ends in the same state.
//  2. The sets on disk are those of the map after the entry that the group's state names, and the
//     parts that nobody has adopted are whole.
//  3. If a node's parent has applied the Split, and keeps no snapshot from after it alone, the
//     children can adopt their parts, as often as they begin anew, but not after they were dropped.
//  4. While the parent has yet to replay the Split, and its sets lack the parts, SplitAfter says so.
//  5. No key stays on disk that nobody needs: of another generation once the groups are open, of a
//     record without a Split, of a dropped group, or of a home without a name and a Parting.
//  6. At the end, all replicas have all entries.
//  7. A snapshot from before the Split is sent with sets from before it.
//
// It finds these faults, each made by hand: a commit does not copy a new pair, or a removed one, up to the frontier; a
// commit copies pairs behind the frontier; AdoptPart leaves the
// record, so that Trim removes the adopted home; AdoptPart leaves the parent the owner of the home, so that a drop or
// Load of the parent removes it; AdoptPart stores no outcome; Open leaves the homes of a Parting, or Part takes them over;
// OpenView sends the sets after the Split for a snapshot before it. Rare ones are in parting_test.go.
func TestSplitModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &splitModel{}
		for i := range m.shards {
			m.shards[i].sets = map[Pair]Stamp{}
		}
		for i := range m.nodes {
			m.nodes[i] = &splitNode{fs: vfs.NewCrashableMem()}
			m.open(t, m.nodes[i])
		}
		defer func() {
			for _, n := range m.nodes {
				n.close()
			}
		}()
		if rapid.Bool().Draw(t, "the parent has split") {
			m.append(&m.shards[modelParent], drawEntry(t, 0))
			for _, n := range m.nodes {
				m.apply(t, n, modelParent, len(m.shards[modelParent].log))
				m.snapshotOf(t, n, modelParent)
			}
			m.grow(t)
			for _, n := range m.nodes {
				m.apply(t, n, modelParent, rapid.IntRange(1, 2).Draw(t, "to"))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"entry":    m.entry,
			"entries":  m.entry,
			"grow":     m.grow,
			"apply":    func(t *rapid.T) { m.applySome(t, m.node(t), m.shard(t)) },
			"follow":   func(t *rapid.T) { m.applySome(t, m.node(t), m.shard(t)) },
			"snapshot": func(t *rapid.T) { m.snapshotOf(t, m.node(t), m.shard(t)) },
			"send":     func(t *rapid.T) { m.send(t, m.node(t), m.shard(t)) },
			"abandon":  func(t *rapid.T) { m.abandon(t, m.node(t), m.shard(t)) },
			"crash":    func(t *rapid.T) { m.crash(t, m.node(t)) },
			"drop":     m.drop,
			"part":     func(t *rapid.T) { m.part(t, m.node(t)) },
			"part on":  func(t *rapid.T) { m.part(t, m.node(t)) },
			"end":      func(t *rapid.T) { m.endParting(t, m.node(t)) },
			"fill": func(t *rapid.T) {
				if err := m.node(t).replicas[m.shard(t)].group.fillFilter(); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) { m.check(t, m.node(t), m.shard(t)) },
		})
		m.finish(t)
	})
}

type splitModel struct {
	shards [modelParts]world // the parent, then the children
	split  *modelSplit       // nil before the Split is in the parent's log
	nodes  [2]*splitNode
}

type splitNode struct {
	fs       *vfs.MemFS
	store    *Store
	replicas [modelParts]splitReplica
	parked   [modelParts]bool // parts in the node's memory, since its parent has applied the Split
	parting  *Parting         // the last one of the parent, which may have ended
}

type splitReplica struct {
	group *Group
	state stored
	saved []savedSets // stored snapshots, oldest first
	stuck bool        // it needs a snapshot of the other node
	lost  bool        // its sets were replaced or dropped, perhaps with the part that it had adopted
}

// savedSets is a stored snapshot. A snapshot of the replica itself names its sets, and a received one
// contains them.
type savedSets struct {
	stored
	received bool
	blocks   [][]byte
	found    State // state of the sets in blocks
}

func (m *splitModel) node(t *rapid.T) *splitNode {
	return rapid.SampledFrom(m.nodes[:]).Draw(t, "node")
}

func (m *splitModel) shard(t *rapid.T) int {
	return rapid.SampledFrom([]int{modelParent, modelParent, 1, 2}).Draw(t, "shard")
}

func (m *splitModel) other(n *splitNode) *splitNode {
	if n == m.nodes[0] {
		return m.nodes[1]
	}
	return m.nodes[0]
}

func (m *splitModel) open(t *rapid.T, n *splitNode) {
	n.store = storeOf(t, n.fs)
	n.store.stepPairs = 2
	n.parked, n.parting = [modelParts]bool{}, nil
	for shard := range n.replicas {
		r := &n.replicas[shard]
		r.group, r.state, r.stuck = groupOf(t, n.store, uint32(shard)), stored{}, false
		if len(r.saved) > 0 {
			r.restore(t)
		}
		for kind, keys := range n.keys(t, shard) {
			if other := keys[r.group.Generation()]; len(keys) > 1 || len(keys) == 1 && other == 0 {
				t.Fatalf("shard %d is of generation %d, and has keys of kind %c of %v", shard, r.group.Generation(), kind, keys)
			}
		}
	}
}

// keys counts the keys of a group on disk, by kind and generation.
func (n *splitNode) keys(t *rapid.T, shard int) map[byte]map[uint32]int {
	found := map[byte]map[uint32]int{}
	for _, kind := range []byte("mtrdox") {
		found[kind] = map[uint32]int{}
		err := each(n.store.present(), groupPrefix(kind, uint32(shard)), func(key, _ []byte) (bool, error) {
			found[kind][binary.BigEndian.Uint32(key[groupPrefixBytes:])]++
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// checkHomes checks that all homes with keys on disk have an owner, and that the owner names them.
func (n *splitNode) checkHomes(t *rapid.T) {
	names := map[uint32]uint32{}
	for shard := range n.replicas {
		g := n.replicas[shard].group
		found, err := readState(n.store.present(), g.number)
		records, failed := readRecords(n.store.present(), found.log(g.number))
		if err = errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		for _, r := range append(records, record{home: found.home}) {
			if _, is := names[r.home]; is && r.home > 0 {
				t.Fatalf("home %d has two names", r.home)
			}
			names[r.home] = g.number
		}
		if g.parting != nil {
			for _, of := range g.parting.homes {
				names[of] = g.number
			}
		}
	}
	if delete(names, 0); !maps.Equal(names, n.store.homes.mu.owners) {
		t.Fatalf("the homes %v have these names: %v", n.store.homes.mu.owners, names)
	}
	named := slices.Collect(maps.Keys(names))
	for _, kind := range pairKinds {
		err := each(n.store.present(), groupPrefix(kind, homesGroup), func(key, _ []byte) (bool, error) {
			if of := binary.BigEndian.Uint32(key[groupPrefixBytes:]); !slices.Contains(named, of) {
				return false, fmt.Errorf("home %d has keys of kind %c and no name", of, kind)
			}
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// restore makes the replica begin with its newest stored snapshot.
func (r *splitReplica) restore(t *rapid.T) {
	s := &r.saved[len(r.saved)-1]
	r.state, r.stuck = s.stored, false
	var err error
	switch {
	case s.at.Index == 0:
		err = r.group.Reset()
	case !s.received:
		err = r.group.Adopts(s.generation, s.at)
	default:
		var l *Load
		l, err = r.group.Load()
		for i := 0; i < len(s.blocks) && err == nil; i++ {
			err = l.Block(s.blocks[i])
		}
		if err == nil {
			err = l.Switch(s.found)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (n *splitNode) close() {
	for i := range n.replicas {
		n.replicas[i].group.Close()
	}
	_ = n.store.Close()
}

// born reports whether the replica of a child has adopted its part.
func (r *splitReplica) born() bool { return r.state.index > 0 }

// entry appends an entry of ops to a log. All rows are of the shard if the parent has split.
func (m *splitModel) entry(t *rapid.T) {
	shard := m.shard(t)
	if w := &m.shards[shard]; shard == modelParent || len(w.log) > 0 {
		e := drawEntry(t, len(w.log))
		for i := range e.ops {
			if row := &e.ops[i].pair.Row; m.split != nil && modelPart(*row) != shard {
				*row = uint64(shard)
			}
		}
		m.append(w, e)
	}
}

func (m *splitModel) append(w *world, e entry) {
	e.judged = w.model(&e)
	w.log = append(w.log, e)
}

// grow appends a Split, or an entry that adopts a part. A child may get that entry twice.
func (m *splitModel) grow(t *rapid.T) {
	w := &m.shards[modelParent]
	if m.split == nil {
		m.split = &modelSplit{index: uint64(len(w.log) + 1)}
		m.append(w, entry{now: logTimeStart, split: m.split})
		return
	}
	part := rapid.IntRange(1, modelParts-1).Draw(t, "part")
	m.append(&m.shards[part], entry{now: logTimeStart, split: m.split, part: part})
}

func (m *splitModel) applySome(t *rapid.T, n *splitNode, shard int) {
	m.apply(t, n, shard, rapid.IntRange(n.replicas[shard].state.index, len(m.shards[shard].log)).Draw(t, "to"))
}

// apply applies the entries of a shard up to index to on a node. It stops early at an entry that
// adopts a part, if the part is not on the node.
func (m *splitModel) apply(t *rapid.T, n *splitNode, shard, to int) {
	r, w := &n.replicas[shard], &m.shards[shard]
	for !r.stuck && r.state.index < to {
		e, index := &w.log[r.state.index], r.state.index+1
		if e.part > 0 && !r.born() && !n.parked[shard] {
			return
		}
		judged, after := []bool(nil), r.state.at
		if e.part == 0 || !r.born() {
			var err error
			judged, after, err = give(r.group, r.state.at, uint64(index), e)
			if r.stuck = errors.Is(err, ErrNotStaged) && (r.lost || !m.keeps(n)); r.stuck {
				return
			}
			if err != nil {
				t.Fatalf("shard %d, entry %d: %v", shard, index, err)
			}
		}
		for i := range max(len(judged), len(e.judged)) {
			if judged[i] != e.judged[i] {
				t.Fatalf("shard %d, entry %d, op %d: judged %v, want %v", shard, index, i, judged[i], e.judged[i])
			}
		}
		if e.after == (State{}) {
			e.after = after
		}
		if after != e.after {
			t.Fatalf("shard %d, entry %d: %+v, the first time %+v", shard, index, after, e.after)
		}
		r.state = stored{index: index, at: after}
		if e.split != nil && e.part == 0 {
			n.parked = [modelParts]bool{false, !n.replicas[1].born(), !n.replicas[2].born()}
		}
		if e.part > 0 {
			n.parked[shard] = false
		}
	}
	m.check(t, n, shard)
}

// keeps reports whether the node must have the staged parts: its parent has applied the Split, and
// may replay it.
func (m *splitModel) keeps(n *splitNode) bool {
	p := &n.replicas[modelParent]
	return m.split != nil && p.state.index >= int(m.split.index) && (len(p.saved) == 0 || p.saved[0].index < int(m.split.index))
}

func (m *splitModel) check(t *rapid.T, n *splitNode, shard int) {
	r := &n.replicas[shard]
	if r.stuck {
		return
	}
	w := &world{sets: m.shards[shard].asOf(r.group.State().Index)}
	w.check(t, r.group)
	ahead := false
	if shard == modelParent && m.split != nil {
		ahead = uint64(r.state.index) < m.split.index && r.group.State().Index >= m.split.index
	}
	if got := r.group.SplitAfter(uint64(r.state.index)); got != ahead {
		t.Fatalf("shard %d, entry %d, sets of entry %d: SplitAfter is %v", shard, r.state.index, r.group.State().Index, got)
	}
	if records := n.keys(t, shard)[keyRecord][r.group.Generation()]; records > 0 && r.group.split == 0 {
		t.Fatalf("shard %d has %d records and no Split", shard, records)
	}
	n.checkHomes(t)
}

// part makes a step of a Parting of the parent. A Parting by another Partition replaces an earlier one.
func (m *splitModel) part(t *rapid.T, n *splitNode) {
	r := &n.replicas[modelParent]
	if m.split != nil && r.group.State().Index >= m.split.index {
		return
	}
	by := modelPartition{other: rapid.IntRange(0, 4).Draw(t, "by") == 0}
	p, err := r.group.Part(by, modelParts)
	for range rapid.IntRange(0, 6).Draw(t, "steps") {
		if err == nil {
			_, err = p.Step()
		}
	}
	if n.parting = p; err != nil {
		t.Fatal(err)
	}
}

func (m *splitModel) endParting(t *rapid.T, n *splitNode) {
	if n.parting != nil {
		n.parting.End()
		n.checkHomes(t)
	}
}

// begun reports whether each child has a snapshot on some node.
func (m *splitModel) begun() bool {
	for child := 1; child < modelParts; child++ {
		if len(m.nodes[0].replicas[child].saved)+len(m.nodes[1].replicas[child].saved) == 0 {
			return false
		}
	}
	return true
}

// snapshotOf stores a snapshot of a replica. It keeps the one before it.
func (m *splitModel) snapshotOf(t *rapid.T, n *splitNode, shard int) {
	r := &n.replicas[shard]
	beyond := shard == modelParent && m.split != nil && r.state.index >= int(m.split.index)
	if r.stuck || r.state.index == 0 || beyond && !m.begun() || len(r.saved) > 0 && r.saved[len(r.saved)-1].index == r.state.index {
		return
	}
	if err := errors.Join(r.group.Capture(), r.group.Sync()); err != nil {
		t.Fatal(err)
	}
	r.state.generation = r.group.Generation()
	r.saved = append(r.saved, savedSets{stored: r.state})
	if len(r.saved) > 2 {
		r.saved = r.saved[1:]
	}
	m.trim(t, r)
}

func (m *splitModel) trim(t *rapid.T, r *splitReplica) {
	if err := r.group.Trim(uint64(r.saved[0].index)); err != nil {
		t.Fatal(err)
	}
}

// send makes a node receive the newest stored snapshot of the other node's replica, if it is newer or
// the replica is stuck.
func (m *splitModel) send(t *rapid.T, to *splitNode, shard int) {
	from, r := &m.other(to).replicas[shard], &to.replicas[shard]
	if from.stuck || len(from.saved) == 0 {
		return
	}
	s := from.saved[len(from.saved)-1]
	if !r.stuck && s.index <= r.state.index {
		return
	}
	if s.received = true; s.at.Index > 0 {
		if s.found, s.blocks = from.carried(t, s.at); shard == modelParent && m.split != nil && s.at.Index < m.split.index && s.found.Index >= m.split.index {
			t.Fatalf("a snapshot of entry %d is sent with the sets of entry %d, after the split at %d", s.at.Index, s.found.Index, m.split.index)
		}
	}
	r.saved, r.lost = []savedSets{s}, true
	r.restore(t)
	m.trim(t, r)
	m.check(t, to, shard)
}

// abandon begins to load the newest stored snapshot of the other node's replica, and ends before Switch.
func (m *splitModel) abandon(t *rapid.T, to *splitNode, shard int) {
	from := &m.other(to).replicas[shard]
	if from.stuck || len(from.saved) == 0 || from.saved[len(from.saved)-1].at.Index == 0 {
		return
	}
	_, blocks := from.carried(t, from.saved[len(from.saved)-1].at)
	l, err := to.replicas[shard].group.Load()
	for i := 0; i < len(blocks)-rapid.IntRange(0, 1).Draw(t, "missing") && err == nil; i++ {
		err = l.Block(blocks[i])
	}
	if err != nil {
		t.Fatal(err)
	}
}

// carried returns the sets of a stored snapshot, as the replica sends them. It may have released the
// view of these sets.
func (r *splitReplica) carried(t *rapid.T, at State) (found State, blocks [][]byte) {
	if rapid.Bool().Draw(t, "release") {
		r.group.ReleaseViews(time.Now())
	}
	return viewOf(t, r.group, at)
}

// crash ends a node in the middle of a step, with a part of the bytes that were not synced before
// the step, and opens it again. A replica may restart from its older snapshot.
func (m *splitModel) crash(t *rapid.T, n *splitNode) {
	if rapid.Bool().Draw(t, "sync") {
		if err := n.store.db.LogData(nil, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	name, synced := newestLog(t, n.fs.CrashClone(vfs.CrashCloneCfg{}))
	shard := m.shard(t)
	switch rapid.IntRange(0, 6).Draw(t, "step") {
	case 5:
		m.part(t, n)
	case 6:
		m.endParting(t, n)
	case 0:
		m.send(t, n, shard)
	case 4:
		m.abandon(t, n, shard)
	case 1:
		if r := &n.replicas[shard]; len(r.saved) > 0 {
			m.trim(t, r)
		}
	default:
		m.applySome(t, n, shard)
	}
	if err := n.store.db.LogData(nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	n.fs = n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	last, bytes := newestLog(t, n.fs)
	if last != name {
		synced = nil
	}
	cutLog(t, n.fs, last, bytes[:rapid.IntRange(min(len(synced), len(bytes)), len(bytes)).Draw(t, "bytes")])
	n.close()
	for i := range n.replicas {
		if r := &n.replicas[i]; len(r.saved) > 1 && rapid.Bool().Draw(t, "from the older snapshot") {
			r.saved = r.saved[:1]
		}
	}
	m.open(t, n)
	for i := range n.replicas {
		if rapid.Bool().Draw(t, "send") {
			m.send(t, n, i)
		}
		m.applySome(t, n, i)
	}
}

// newestLog returns the last file of Pebble's log, and what it has.
func newestLog(t *rapid.T, fs *vfs.MemFS) (name string, b []byte) {
	names, err := fs.List("members")
	if err != nil {
		return "", nil // the directory is not durable yet
	}
	for _, of := range names {
		if strings.HasSuffix(of, ".log") {
			name = max(name, of)
		}
	}
	if name == "" {
		return "", nil
	}
	if b, err = readFile(fs, fs.PathJoin("members", name)); err != nil {
		t.Fatal(err)
	}
	return name, b
}

func cutLog(t *rapid.T, fs *vfs.MemFS, name string, b []byte) {
	f, err := fs.Create(fs.PathJoin("members", name), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// drop removes a replica, and begins another one without a snapshot. The other node has a snapshot
// with all entries that the shard's other replicas need.
func (m *splitModel) drop(t *rapid.T) {
	n, shard := m.node(t), m.shard(t)
	if m.split == nil || !m.begun() || len(m.other(n).replicas[shard].saved) == 0 || m.other(n).replicas[shard].stuck {
		return
	}
	n.replicas[shard].group.Close()
	if err := n.store.Drop(uint32(shard)); err != nil {
		t.Fatal(err)
	}
	for kind, keys := range n.keys(t, shard) {
		if len(keys) > 0 {
			t.Fatalf("a dropped group has keys of kind %c of %v", kind, keys)
		}
	}
	n.replicas[shard] = splitReplica{group: groupOf(t, n.store, uint32(shard)), lost: true}
	m.applySome(t, n, shard)
}

// finish brings all replicas to the ends of their logs.
func (m *splitModel) finish(t *rapid.T) {
	for range 3 {
		for _, n := range m.nodes {
			for shard := range n.replicas {
				if m.apply(t, n, shard, len(m.shards[shard].log)); n.replicas[shard].state.index < len(m.shards[shard].log) {
					n.replicas[shard].stuck = true
					m.send(t, n, shard)
					m.apply(t, n, shard, len(m.shards[shard].log))
				}
			}
		}
	}
	for i, n := range m.nodes {
		for shard := range n.replicas {
			if got, want := n.replicas[shard].state.index, len(m.shards[shard].log); got != want {
				t.Fatalf("node %d has applied %d entries of shard %d, of %d", i, got, shard, want)
			}
			m.check(t, n, shard)
		}
	}
}
