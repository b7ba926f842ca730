package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/source/sink"
)

var errStopped = errors.New("stopped here")

// stoppedNodes is the directories of a cluster of stopped nodes, each with a shared log or files of bolt.
type stoppedNodes struct {
	t     *testing.T
	store storage.LogStore
	keys  []string
	dirs  []string
	view  *catalog.View // the catalog of all nodes
}

const noLog = -1

// newStoppedNodes makes n nodes. The first three vote in the catalog. The keyspace posts has two
// shards on the nodes that of returns. Each replica has the entries that all have, and lag[node]
// fewer of the last three, or no log of a shard if it is noLog.
func newStoppedNodes(t *testing.T, store storage.LogStore, n int, of func(shard int) []int, lag []int) *stoppedNodes {
	t.Helper()
	s := &stoppedNodes{t: t, store: store}
	id := strings.Repeat("ab", clusterIDBytes)
	var nodes []catalog.Node
	for i := range n {
		dir := filepath.Join(t.TempDir(), fmt.Sprintf("n%d", i+1))
		d := open(t, dir, fmt.Sprintf("n%d", i+1))
		must.Do(t, d.KeepIdentity())
		must.Do(t, d.SetCluster(id, i == 0))
		s.keys, s.dirs = append(s.keys, d.Identity.Key()), append(s.dirs, dir)
		must.Do(t, d.Close())
		nodes = append(nodes, catalog.Node{Key: s.keys[i], Name: fmt.Sprintf("n%d", i+1), ClusterAddr: fmt.Sprintf("127.0.0.1:%d", i+1), VersionMax: catalog.ClusterVersionMax})
	}
	var commands []*catalog.Command
	for _, node := range nodes {
		commands = append(commands, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: node}})
	}
	commands = append(commands, &catalog.Command{Place: &catalog.PlaceEntry{Target: s.keys[:3]}})
	create := &catalog.CreateEntry{Keyspace: catalog.Keyspace{Name: "posts", Kind: "counters", Divisor: 2, Columns: []string{"like"}}}
	for shard := range 2 {
		var on []string
		for _, i := range of(shard) {
			on = append(on, s.keys[i])
		}
		create.Replicas = append(create.Replicas, on)
	}
	commands = append(commands, &catalog.Command{Create: create})
	commands = append(commands, &catalog.Command{PutSource: &catalog.PutSourceEntry{Name: "queue", Config: []byte("{}"), Cluster: 7}})
	commands = append(commands, &catalog.Command{StartSource: &catalog.StartSourceEntry{Number: 7<<32 | 1, Starts: map[uint32]sink.Position{3: {}}, Identity: "topic"}})
	var entries [][]byte
	view := catalog.New().View()
	for _, c := range commands {
		next, result := view.After(c)
		if view = next; result.Refused != "" {
			t.Fatal(result.Refused)
		}
		entry, err := catalog.AppendEntry(nil, c)
		must.Do(t, err)
		entries = append(entries, entry)
	}
	s.view = view
	for i := range n {
		s.write(i, catalog.Group, 0, s.servers(0, []int{0, 1, 2}), entries)
		for shard := range 2 {
			if at := slices.Index(of(shard), i); at >= 0 && lag[i] != noLog {
				data := slices.Repeat([][]byte{codec.AppendChecksum(codec.BeginEntry(nil, codec.KindCounters, 0))}, 10-lag[i])
				s.write(i, uint32(1+shard), uint64(1+at), s.servers(1, of(shard)), data)
			}
		}
	}
	return s
}

func (s *stoppedNodes) servers(first uint64, on []int) (c raft.Configuration) {
	for at, i := range on {
		number := uint64(0)
		if first > 0 {
			number = first + uint64(at)
		}
		c.Servers = append(c.Servers, raft.Server{ID: replica.RaftID(s.keys[i], number), Address: raft.ServerAddress(fmt.Sprintf("127.0.0.1:%d", i+1))})
	}
	return c
}

// write makes a replica whose log has a configuration and then commands.
func (s *stoppedNodes) write(node int, group uint32, number uint64, c raft.Configuration, commands [][]byte) {
	s.t.Helper()
	s.withLog(node, group, number, func(cfg *replica.Config, stores storage.Stores, log *storage.Log) {
		stop := storage.NewFailStop(func(error) {}, func(error) {})
		must.Do(s.t, storage.NewVotes(stores, group, cfg.LogPath(), stop).SetTerm(1))
		must.Do(s.t, log.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}))
		for i, data := range commands {
			must.Do(s.t, log.StoreLog(&raft.Log{Index: uint64(i) + 2, Term: 1, Type: raft.LogCommand, Data: data, AppendedAt: time.Unix(int64(i), 0)}))
		}
		_, err := storage.OpenSnapshots(cfg.Dir, group, hclog.NewNullLogger(), stop)
		must.Do(s.t, err)
	})
}

// append appends a command to the log of a replica.
func (s *stoppedNodes) append(node int, group uint32, number uint64, command []byte) {
	s.t.Helper()
	s.withLog(node, group, number, func(_ *replica.Config, _ storage.Stores, log *storage.Log) {
		last, err := log.LastIndex()
		must.Do(s.t, err)
		must.Do(s.t, log.StoreLog(&raft.Log{Index: last + 1, Term: 1, Type: raft.LogCommand, Data: command}))
	})
}

// change appends commands to the catalog of each node.
func (s *stoppedNodes) change(commands ...*catalog.Command) {
	s.t.Helper()
	for _, c := range commands {
		next, result := s.view.After(c)
		if s.view = next; result.Refused != "" {
			s.t.Fatal(result.Refused)
		}
		entry, err := catalog.AppendEntry(nil, c)
		must.Do(s.t, err)
		for i := range s.keys {
			s.append(i, catalog.Group, 0, entry)
		}
	}
}

func (s *stoppedNodes) withLog(node int, group uint32, number uint64, do func(*replica.Config, storage.Stores, *storage.Log)) {
	s.t.Helper()
	groups := filepath.Join(s.dirs[node], groupsDir)
	must.Do(s.t, os.MkdirAll(groups, 0o700))
	store, err := storage.ChooseLogStore(groups, s.store)
	must.Do(s.t, err)
	dirs := replica.Dirs{Path: groups}
	cfg := replica.Config{Dir: dirs.Dir(group, number), Group: group, NodeID: s.keys[node], Replica: number, LogStore: store}
	must.Do(s.t, os.MkdirAll(cfg.Dir, 0o700))
	if store == storage.LogStoreShared {
		cfg.NodeLog, err = storage.OpenNodeLog(groups)
		must.Do(s.t, err)
	}
	stores, err := storage.OpenStores(cfg.Stores())
	must.Do(s.t, err)
	do(&cfg, stores, storage.NewLog(stores, group, cfg.LogPath(), 1<<20, storage.NewFailStop(func(error) {}, func(error) {})))
	must.Do(s.t, stores.Close())
	if cfg.NodeLog != nil {
		must.Do(s.t, cfg.NodeLog.Close())
	}
}

// recover runs a recovery with the directories of some nodes. It stops before the given durable step; below 0, never.
// It returns the number of steps.
func (s *stoppedNodes) recover(stopAt int, on ...int) (plan *Recovery, resumed bool, steps int, err error) {
	s.t.Helper()
	var dirs []string
	for _, i := range on {
		dirs = append(dirs, s.dirs[i])
	}
	survivors, err := OpenSurvivors(dirs, nil)
	if err != nil {
		return nil, false, 0, err
	}
	defer func() { must.Do(s.t, survivors.Close()) }()
	survivors.stepped = func(string) error {
		if steps == stopAt {
			return errStopped
		}
		steps++
		return nil
	}
	plan, resumed, err = survivors.Plan(time.Unix(1_800_000_000, 0))
	if err == nil {
		err = survivors.Recover(plan)
	}
	return plan, resumed, steps, err
}

// mustBeRecovered checks all effects of a complete recovery of nodes.
func (s *stoppedNodes) mustBeRecovered(plan *Recovery, on ...int) {
	s.t.Helper()
	for _, i := range on {
		d := open(s.t, s.dirs[i], "")
		if d.Identity.ClusterID != plan.To || plan.To == plan.From || plan.To[:16] != plan.From[:16] {
			s.t.Errorf("%s has the cluster id %s, the plan is from %s to %s", s.dirs[i], d.Identity.ClusterID, plan.From, plan.To)
		}
		reported := 0
		for range 2 {
			must.Do(s.t, d.ReportRecovered(func(r *Recovery) {
				if reported++; r.To != plan.To || len(r.Groups) != len(plan.Groups) {
					s.t.Errorf("reported %+v, want %+v", r, plan)
				}
			}))
		}
		if reported != 1 {
			s.t.Errorf("reported %d times", reported)
		}
		must.Do(s.t, d.Close())
		offline, err := replica.OpenOffline(filepath.Join(s.dirs[i], groupsDir), s.keys[i], nil)
		must.Do(s.t, err)
		for _, g := range plan.Groups {
			if g.Node != s.keys[i] || g.Kept {
				continue
			}
			r, err := offline.Open(g.Group)
			must.Do(s.t, err)
			newest := r.Newest().Servers
			if len(newest) != 1 || newest[0].ID != r.ID || newest[0].Suffrage != raft.Voter || r.LastTerm != g.Term || r.Term < r.LastTerm || r.LastIndex <= g.Index {
				s.t.Errorf("%s on %s: %+v, want the only voter in term %d", g.Name(), g.Node, r, g.Term)
			}
			if g.Group == catalog.Group {
				s.mustForget(r, plan, on...)
			} else if commands := uint64(strings.Count(g.Keyspace, "@")); r.LastIndex != g.Index+commands+1 { // a names group gets one command
				s.t.Errorf("%s: the last entry was %d and is %d", g.Name(), g.Index, r.LastIndex)
			}
			must.Do(s.t, r.Close())
		}
		must.Do(s.t, offline.Close())
	}
}

// mustForget checks that the catalog has only surviving nodes, and placements on these.
func (s *stoppedNodes) mustForget(r *replica.OfflineReplica, plan *Recovery, on ...int) {
	s.t.Helper()
	view, err := r.Catalog()
	must.Do(s.t, err)
	for key := range view.Nodes {
		if !slices.Contains(plan.Nodes, key) {
			s.t.Errorf("the catalog still has %s", key)
		}
	}
	if len(view.Nodes) != len(on) {
		s.t.Errorf("the catalog has %d nodes, not %d", len(view.Nodes), len(on))
	}
	for _, g := range plan.Groups {
		target := view.Groups[g.Group].Target
		if len(target) == 0 || g.Node != "" && target[0] != g.Node {
			s.t.Errorf("the target of %s is %v, not %s first", g.Name(), target, g.Node)
		}
		for _, key := range target {
			if !slices.Contains(plan.Nodes, key) {
				s.t.Errorf("the target of %s is %v", g.Name(), target)
			}
		}
	}
}

func allOnFirstThree(int) []int { return []int{0, 1, 2} }

// TestRecoverStopped stops a recovery before each of its durable steps. A second run completes it, and
// the directories are in use by no node in between once a log has changed.
func TestRecoverStopped(t *testing.T) {
	for _, store := range []storage.LogStore{storage.LogStoreShared, storage.LogStoreBoltDB} {
		for _, on := range [][]int{{0}, {1, 3}} {
			nodes := func() *stoppedNodes {
				return newStoppedNodes(t, store, 5, func(shard int) []int { return []int{shard, 1 + shard, 4} }, make([]int, 5))
			}
			if len(on) == 1 {
				nodes = func() *stoppedNodes { return newStoppedNodes(t, store, 3, allOnFirstThree, make([]int, 3)) }
			}
			for stopAt, steps := 0, 1; stopAt <= steps; stopAt++ {
				s := nodes()
				first, _, n, err := s.recover(stopAt, on...)
				if n < stopAt { // the recovery has fewer steps: it is complete
					break
				}
				if !errors.Is(err, errStopped) {
					must.Do(t, err)
					s.mustBeRecovered(first, on...)
					break
				}
				steps = n + 1
				for _, i := range on { // no node starts between the first changed log and the new cluster id
					plan := filepath.Join(s.dirs[i], recoveryFile)
					for _, other := range []string{plan, plan + ".aside"} { // a version that knows the plan, and one that does not
						if err := os.Rename(plan, other); err != nil && !errors.Is(err, os.ErrNotExist) {
							t.Fatal(err)
						}
						d, err := OpenDataDir(s.dirs[i], "")
						switch {
						case err == nil:
							if d.Identity.ClusterID == first.From && stopAt >= 2*len(on) {
								t.Errorf("%s, %v, stopped before step %d: %s starts in its old cluster", store, on, stopAt, s.dirs[i])
							}
							must.Do(t, d.Close())
						case !errors.Is(err, ErrRecovering):
							t.Fatal(err)
						}
					}
					if err := os.Rename(plan+".aside", plan); err != nil && !errors.Is(err, os.ErrNotExist) {
						t.Fatal(err)
					}
				}
				plan, resumed, _, err := s.recover(-1, on...)
				must.Do(t, err)
				if wrote := stopAt >= len(on); resumed != wrote || wrote && plan.To != first.To {
					t.Errorf("%s, %v, stopped before step %d: resumed is %v, to %s after %s", store, on, stopAt, resumed, plan.To, first.To)
				}
				s.mustBeRecovered(plan, on...)
			}
		}
	}
}

// However often a recovery is stopped while it writes its plan, a later run completes it.
func TestRecoverStoppedOften(t *testing.T) {
	s := newStoppedNodes(t, storage.LogStoreShared, 5, allOnFirstThree, make([]int, 5))
	for _, stopAt := range []int{2, 1, 2, 0, 1} {
		if _, _, _, err := s.recover(stopAt, 0, 3, 4); !errors.Is(err, errStopped) {
			t.Fatalf("stopped before step %d: %v", stopAt, err)
		}
	}
	plan, resumed, _, err := s.recover(-1, 0, 3, 4)
	must.Do(t, err)
	if resumed {
		t.Error("no directory has changed, and the plan is not a new one")
	}
	s.mustBeRecovered(plan, 0, 3, 4)
}

// A report that cannot be read is an error that names its file.
func TestRecoverReportDamaged(t *testing.T) {
	s := newStoppedNodes(t, storage.LogStoreShared, 3, allOnFirstThree, make([]int, 3))
	path := filepath.Join(s.dirs[0], recoveredFile)
	must.Do(t, os.WriteFile(path, []byte("{"), 0o600))
	d := open(t, s.dirs[0], "")
	if err := d.ReportRecovered(func(*Recovery) { t.Error("reported") }); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	must.Do(t, d.Close())
}

// The newest replica of the given directories becomes the only voter, and the plan says how far it is.
func TestRecoverChoosesNewest(t *testing.T) {
	s := newStoppedNodes(t, storage.LogStoreShared, 5, func(shard int) []int { return []int{shard, 1 + shard, 4} }, []int{3, 2, 0, 0, 0})
	// posts/0 is on 0, 1 and 4, posts/1 on 1, 2 and 4.
	plan, _, _, err := s.recover(-1, 0, 1)
	if err == nil || !strings.Contains(err.Error(), "cannot recover") {
		// The catalog keeps two of its three voters, and posts/0 too; posts/1 has lost two.
		must.Do(t, err)
	}
	for _, want := range []struct {
		group uint32
		node  string
		kept  bool
		index uint64
	}{{0, s.keys[0], true, 10}, {1, s.keys[1], true, 9}, {2, s.keys[1], false, 9}} {
		g := plan.Groups[want.group]
		if g.Node != want.node || g.Kept != want.kept || g.Index != want.index {
			t.Errorf("group %d: %+v, want %+v", want.group, g, want)
		}
	}
	s.mustBeRecovered(plan, 0, 1)
}

// A recovery is refused if it has nothing to do, with the directories of two clusters, of one node
// twice, and while a node runs. It names groups without a replica.
func TestRecoverRefuses(t *testing.T) {
	s := newStoppedNodes(t, storage.LogStoreShared, 4, func(shard int) []int { return []int{shard, 1 + shard, 2 + shard} }, make([]int, 4))
	if _, _, _, err := s.recover(-1, 0, 1, 2, 3); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "nothing is lost") {
		t.Errorf("with all nodes: %v", err)
	}
	if _, _, _, err := s.recover(-1, 0, 0); !errors.Is(err, ErrLocked) {
		t.Errorf("one directory twice: %v", err)
	}
	running := open(t, s.dirs[3], "")
	if _, _, _, err := s.recover(-1, 3); !errors.Is(err, ErrLocked) {
		t.Errorf("while the node runs: %v", err)
	}
	must.Do(t, running.Close())
	if _, err := OpenSurvivors([]string{t.TempDir()}, nil); err == nil {
		t.Error("a directory of no node is accepted")
	}
	plan, _, _, err := s.recover(-1, 0)
	must.Do(t, err)
	if lost := plan.LostGroups(); !slices.Equal(lost, []string{"posts/1"}) {
		t.Errorf("lost are %v", lost)
	}
	if _, _, _, err := s.recover(-1, 0, 3); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "of cluster") {
		t.Errorf("with a node of the old cluster: %v", err)
	}
}

// First voters that have not begun yet count in every majority, because they begin at the next start:
//
//  1. If a majority of a group's first voters is here, the group is left alone, even if some of them have no log.
//  2. A recovery is refused if they are a majority beside the newest replica. They are none once
//     their numbers were deleted. A log that was lost may come back, so it changes nothing.
func TestRecoverFirstVotersWithoutLog(t *testing.T) {
	on := func(shard int) []int { return [][]int{{2, 3, 4}, {0, 1, 4}}[shard] }
	for _, lag := range [][]int{{0, 0, 0, noLog, noLog}, {0, 0, noLog, noLog, noLog}} {
		s := newStoppedNodes(t, storage.LogStoreShared, 5, on, lag)
		plan, _, _, err := s.recover(-1, 2, 3, 4)
		must.Do(t, err)
		if first := plan.Groups[1]; !first.Kept || first.Node != s.keys[2] {
			t.Errorf("%v: a majority of the first voters is here: %+v", lag, first)
		}
		if lost := plan.LostGroups(); !slices.Equal(lost, []string{"posts/1"}) {
			t.Errorf("%v: lost are %v", lag, lost)
		}
	}
	grown := func() *stoppedNodes { // the log of node 2 has other voters, which are lost
		s := newStoppedNodes(t, storage.LogStoreShared, 5, on, []int{0, 0, noLog, noLog, noLog})
		s.write(2, 1, 1, s.servers(1, []int{2, 0, 1}), nil)
		return s
	}
	s := grown()
	if _, _, _, err := s.recover(-1, 2, 3, 4); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "may elect a leader") {
		t.Errorf("two first voters can elect one of them: %v", err)
	}
	d := open(t, s.dirs[3], "")
	must.Do(t, d.GroupOpened(1))
	must.Do(t, d.Close())
	if _, _, _, err := s.recover(-1, 2, 3, 4); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "may elect a leader") {
		t.Errorf("a log that was lost may come back: %v", err)
	}
	s = grown()
	must.Do(t, os.Mkdir(filepath.Join(s.dirs[3], groupsDir, "00001.2.removed"), 0o700))
	plan, _, _, err := s.recover(-1, 2, 3, 4)
	must.Do(t, err)
	if first := plan.Groups[1]; first.Kept || first.Node != s.keys[2] {
		t.Errorf("the newest replica is the only voter: %+v", first)
	}
}

// entryOf returns an entry with one request.
func entryOf(id dedup.RequestID, ops ...engine.Op) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Route{Modulus: 2}, &id)
	for i := range ops {
		counters.Ops(ops).AppendTo(&w, ops[i].ID, i)
	}
	clocked := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 0), time.Unix(1, 0), dedup.Limits{})
	return codec.AppendChecksum(append(clocked, w.Section()...))
}

// The catalog of the survivors may lack entries that their shards rely on. The recovered catalog
// gives no column, epoch, group or attempt of these a second time. If a shard was split into groups
// that no catalog knows, the recovery is refused.
func TestRecoverCatalogBehind(t *testing.T) {
	made := func() *stoppedNodes {
		return newStoppedNodes(t, storage.LogStoreShared, 3, allOnFirstThree, make([]int, 3))
	}
	s := made()
	s.append(0, 1, 1, entryOf(dedup.RequestID{}, engine.Op{ID: 4, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 2, Value: 5}}}))
	s.append(0, 1, 1, entryOf(dedup.BySource(dedup.SourceSection{PositionKey: dedup.PositionKey{Source: 7<<32 | 1, Partition: 3}, Mode: dedup.SectionRead, Epoch: 4, Since: 1})))
	s.append(0, 1, 1, (&raftfsm.AbandonEntry{From: codec.Route{Modulus: 2}, Attempt: 200}).Entry(codec.KindCounters))
	plan, _, _, err := s.recover(-1, 0)
	must.Do(t, err)
	s.mustBeRecovered(plan, 0)
	offline, err := replica.OpenOffline(filepath.Join(s.dirs[0], groupsDir), s.keys[0], nil)
	must.Do(t, err)
	meta, err := offline.Open(catalog.Group)
	must.Do(t, err)
	view, err := meta.Catalog()
	must.Do(t, err)
	posts, queue := view.Keyspaces["posts"], view.Sources["queue"]
	if !slices.Equal(posts.Columns, []string{"like", "recovered_1", "recovered_2"}) || len(view.Keyspaces) != 1 {
		t.Errorf("%+v", view.Keyspaces)
	}
	if p := queue.Partitions[3]; p.Epoch != 5 || p.Since() != 1 || queue.Paused {
		t.Errorf("%+v", queue)
	}
	if view.NextGroup <= 200 {
		t.Errorf("the next group is %d", view.NextGroup)
	}
	must.Do(t, meta.Close())
	must.Do(t, offline.Close())

	s = made()
	s.write(1, 2, 4, s.servers(1, []int{0, 1, 2}), nil)
	must.Do(t, os.RemoveAll(filepath.Join(s.dirs[1], groupsDir, "00002.2")))
	if _, _, _, err := s.recover(-1, 1); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "has replica 4 of group 2") {
		t.Errorf("with a replica of an unknown number: %v", err)
	}

	s = made()
	split := &raftfsm.SplitEntry{From: codec.Route{Modulus: 2}, Attempt: 200, Term: 1, Group: 1, Divisor: 2, Children: []uint32{201}}
	s.append(0, 1, 1, split.Entry(codec.KindCounters))
	if _, _, _, err := s.recover(-1, 0); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "posts/0 was split") {
		t.Errorf("after a split into unknown groups: %v", err)
	}
}

// A survivor may lack the last names, and have counts under their numbers. Its recovered names group
// gives none of these numbers to another text, whether the recovery was interrupted or not.
func TestRecoverGivesNoNumberAgain(t *testing.T) {
	for stopAt := range 20 {
		s := newStoppedNodes(t, storage.LogStoreShared, 3, allOnFirstThree, make([]int, 3))
		create := &catalog.CreateEntry{Keyspace: catalog.Keyspace{Name: "articles", Kind: "counters", Divisor: 1, Columns: []string{"like"}, Names: "articles@ids"}, Replicas: [][]string{s.keys, s.keys}}
		s.change(&catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: catalog.ClusterVersionMax}}, &catalog.Command{Create: create})
		ids := s.view.Keyspaces["articles@ids"]
		group := ids.FirstGroup()
		all := [][]byte{nameEntry("a"), nameEntry("lost")}
		for i := range 3 {
			s.write(i, group, uint64(1+i), s.servers(1, []int{0, 1, 2}), all[:len(all)-i/2])
		}
		lost := assigned(t, all)[1]
		plan, _, steps, err := s.recover(stopAt, 2)
		if errors.Is(err, errStopped) {
			plan, _, _, err = s.recover(-1, 2)
		}
		must.Do(t, err)
		s.mustBeRecovered(plan, 2)
		var entries [][]byte
		s.withLog(2, group, 3, func(_ *replica.Config, _ storage.Stores, log *storage.Log) {
			last, err := log.LastIndex()
			must.Do(t, err)
			for index := uint64(1); index <= last; index++ {
				var entry raft.Log
				must.Do(t, log.GetLog(index, &entry))
				if entry.Type == raft.LogCommand {
					entries = append(entries, entry.Data)
				}
			}
		})
		got := assigned(t, append(entries, nameEntry("other"), nameEntry("lost")))
		if n := len(got); got[0] != 1 || got[n-2] < lost+namesSkipped || got[n-1] != got[n-2]+1 {
			t.Errorf("other has number %d, and lost has %d; it had %d, and has counts there", got[n-2], got[n-1], lost)
		}
		if steps < stopAt {
			return
		}
	}
	t.Error("the recovery has more steps")
}

// nameEntry returns an entry that gives a number to a text.
func nameEntry(text string) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	names.Ops{{Kind: names.Assign, Text: text}}.AppendTo(&w, 0, 0)
	clocked := dedup.AppendClock(codec.BeginEntry(nil, codec.KindNames, 1), time.Unix(1, 0), dedup.Limits{KeyHorizon: time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5})
	return codec.AppendChecksum(append(clocked, w.Section()...))
}

// assigned returns the numbers that the entries of a names group give; 0 for an entry without a result row.
func assigned(t *testing.T, entries [][]byte) (numbers []int64) {
	t.Helper()
	m := names.New(spill.Place{})
	defer m.Close()
	for _, entry := range entries {
		result, is := m.Apply(rafttest.Next(m, entry)).(*raftfsm.Result)
		if !is {
			t.Fatalf("entry %x is refused", entry)
		}
		numbers = append(numbers, append(result.Rows, 0)[0])
	}
	return numbers
}

// During the split of a shard, the parent and the children must be recovered on one node. Other
// shards of the keyspace may be recovered on others.
func TestRecoverGrowing(t *testing.T) {
	made := func() *stoppedNodes {
		s := newStoppedNodes(t, storage.LogStoreShared, 6, func(shard int) []int { return [][]int{{0, 1, 2, 4, 5}, {3, 4, 5}}[shard] }, []int{0, 0, 0, 0, 0, 1})
		s.change(&catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: catalog.ClusterVersionMax}},
			&catalog.Command{Grow: &catalog.GrowEntry{Keyspace: "posts", FirstGroup: 1, From: 2, To: 4}})
		for _, parent := range []uint32{1, 2} {
			s.change(&catalog.Command{CommitSplit: &catalog.CommitSplitEntry{Group: parent, Revision: s.view.Groups[parent].Revision}})
		}
		return s
	}
	s := made()
	plan, _, _, err := s.recover(-1, 0, 3)
	must.Do(t, err)
	if plan.Groups[1].Node != s.keys[0] || plan.Groups[2].Node != s.keys[3] {
		t.Errorf("%+v", plan.Groups)
	}
	s = made()
	child := s.view.SplitOf(1).Attempt.Children[0]
	s.write(5, child, 5, s.servers(1, []int{0, 1, 2, 4, 5}), nil)
	if _, _, _, err := s.recover(-1, 0, 5); !errors.Is(err, ErrCannotRecover) || !strings.Contains(err.Error(), "are parts of one shard") {
		t.Errorf("a parent and a child on different nodes: %v", err)
	}
	_, _, _, err = s.recover(-1, 0, 4, 5) // a majority of both, which is left alone
	must.Do(t, err)
}

// A damaged replica is never chosen, and its node can start: the replica is set aside, and the group
// gets another. The other replicas of its node are recovered.
func TestRecoverDamaged(t *testing.T) {
	s := newStoppedNodes(t, storage.LogStoreShared, 4, func(int) []int { return []int{0, 1, 2, 3} }, []int{0, 0, 0, 2})
	dir := filepath.Join(s.dirs[0], groupsDir, "00001.1")
	s.withLog(0, 1, 1, func(cfg *replica.Config, _ storage.Stores, _ *storage.Log) {
		snaps, err := storage.OpenSnapshots(cfg.Dir, 1, hclog.NewNullLogger(), storage.NewFailStop(func(error) {}, func(error) {}))
		must.Do(t, err)
		sink, err := snaps.Create(raft.SnapshotVersionMax, 4, 1, s.servers(1, []int{0, 1, 2, 3}), 1, nil)
		must.Do(t, err)
		_, err = sink.Write(make([]byte, 1000))
		must.Do(t, err)
		must.Do(t, sink.Close())
	})
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.snap"))
	must.Do(t, err)
	state, err := os.ReadFile(files[0])
	must.Do(t, err)
	state[len(state)-500] ^= 1
	must.Do(t, os.WriteFile(files[0], state, 0o600))
	plan, _, _, err := s.recover(-1, 0, 3)
	must.Do(t, err)
	first, second := plan.Groups[1], plan.Groups[2]
	if first.Node != s.keys[3] || !slices.Equal(first.Damaged, s.keys[:1]) || second.Node != s.keys[0] || second.Damaged != nil {
		t.Errorf("%+v", plan.Groups)
	}
	if _, err := os.Stat(dir + replica.RemovedSuffix); err != nil {
		t.Error(err)
	}
	s.mustBeRecovered(plan, 0, 3)
	offline, err := replica.OpenOffline(filepath.Join(s.dirs[0], groupsDir), s.keys[0], nil)
	must.Do(t, err)
	meta, err := offline.Open(catalog.Group)
	must.Do(t, err)
	view, err := meta.Catalog()
	must.Do(t, err)
	if of := view.Groups[1].Target; !slices.Equal(of, s.keys[3:]) || offline.MayBegin(1, 1) {
		t.Errorf("the group is to be on %v", of)
	}
	must.Do(t, meta.Close())
	must.Do(t, offline.Close())
}
