package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// formWorld simulates nodes without a cluster in memory: their disks, the gossip among them, and
// the calls between them. Calls may be slow, lost in either direction, or arrive long after the
// caller has given up. It runs in a bubble of testing/synctest, so no goroutine sleeps while it
// holds a lock.
type formWorld struct {
	t      *testing.T
	label  string
	expect int
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		rng     *rand.Rand
		nodes   []*formNode
		weather weather
		// admitted holds, for each cluster, the keys that its catalog has, including the founder's.
		admitted map[string]map[string]bool
		// founded holds the set that founded each cluster.
		founded map[string]string
		blind   bool // nodes see only the members that the method dream shows them
		ended   bool
	}
}

// weather configures the faults of calls, gossip and disks.
type weather struct {
	lost     float64       // share of requests, and of answers, that get lost
	slowest  time.Duration // longest delay of a request or answer
	newsSlow time.Duration // longest delay of news by gossip
	crashes  float64       // share of writes to disk at which the node crashes
}

var fairWeather = weather{slowest: 50 * time.Millisecond, newsSlow: 300 * time.Millisecond}

// formNode is one node, across its restarts and wipes. The world's lock guards its fields.
type formNode struct {
	world   *formWorld
	disk    Identity
	run     int // number of the running process; 0 for none, negative after a crash
	runs    int
	news    uint64 // number of the last news about this node
	said    Member
	former  *Former
	view    *formView
	stop    context.CancelFunc
	problem error // the error with which its last process ended
	side    int   // side of the cut network; nodes reach only nodes of their own side
}

// formView is the view of one process.
type formView struct {
	mu struct {
		sync.Mutex
		members map[string]Member
		heard   map[string]uint64 // number of the last news, by key
		changed chan struct{}
	}
}

func newFormView() *formView {
	v := &formView{}
	v.mu.members, v.mu.heard, v.mu.changed = map[string]Member{}, map[string]uint64{}, make(chan struct{})
	return v
}

func (v *formView) Members() []Member {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Values(v.mu.members))
}

func (v *formView) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.changed
}

// hear stores news of a member unless the view already has newer news.
func (v *formView) hear(m Member, number uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if heard := v.mu.heard[m.Key]; heard > number || heard == number && v.mu.members[m.Key].Alive == m.Alive {
		return
	}
	v.mu.heard[m.Key] = number
	v.setLocked(m)
}

// lose marks a member as dead, because it does not answer.
func (v *formView) lose(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m, known := v.mu.members[key]; known {
		m.Alive = false
		v.setLocked(m)
	}
}

// show sets the view of a member.
func (v *formView) show(m Member) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m.Key != "" && v.mu.members[m.Key] != m {
		v.setLocked(m)
	}
}

func (v *formView) setLocked(m Member) {
	v.mu.members[m.Key] = m
	close(v.mu.changed)
	v.mu.changed = make(chan struct{})
}

func newFormWorld(t *testing.T, label string, seed uint64, nodes, expect int) *formWorld {
	w := &formWorld{t: t, label: label, expect: expect}
	w.mu.rng = rand.New(rand.NewPCG(seed, 1))
	w.mu.weather = fairWeather
	w.mu.admitted, w.mu.founded = map[string]map[string]bool{}, map[string]string{}
	for i := range nodes {
		n := &formNode{world: w, disk: Identity{Format: identityFormat, NodeID: fmt.Sprintf("n%d", i)}}
		n.disk.Instance = w.hexLocked()
		w.mu.nodes = append(w.mu.nodes, n)
	}
	return w
}

func (w *formWorld) hexLocked() string { return fmt.Sprintf("%08x", w.mu.rng.Uint32()) }

func (w *formWorld) errorf(format string, args ...any) {
	w.t.Errorf(w.label+": "+format, args...)
}

// within returns a random time up to limit.
func (w *formWorld) within(limit time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.mu.rng.Int64N(int64(limit) + 1))
}

func (w *formWorld) chance(share float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.rng.Float64() < share
}

func (w *formWorld) weather() weather {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.weather
}

func (w *formWorld) setWeather(now weather) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.weather = now
}

// start starts a process of the node unless one runs.
func (n *formNode) start() {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.run > 0 || w.mu.ended {
		return
	}
	n.runs++
	n.run, n.view = n.runs, newFormView()
	n.said = Member{Key: n.disk.Key(), Name: n.disk.NodeID, ClusterID: n.disk.ClusterID, ClusterAddr: n.disk.NodeID, Expect: uint8(w.expect)}
	w.tellLocked(n, true)
	w.introduceLocked(n)
	if n.disk.ClusterID != "" {
		return
	}
	former, err := NewFormer(FormConfig{
		Identity: n.disk, Node: catalog.Node{Key: n.disk.Key(), Name: n.disk.NodeID}, Expect: w.expect, Join: true,
		View: n.view, Asker: formAsker{n, n.run}, Store: formDisk{n, n.run}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.errorf("%v", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.former, n.stop = former, cancel
	run := n.run
	w.wg.Go(func() { n.form(ctx, former, run) })
}

// form runs the Former of one process. It then waits, as a real node does to open the catalog, and
// announces the cluster by gossip.
func (n *formNode) form(ctx context.Context, former *Former, run int) {
	id, err := former.Run(ctx)
	w := n.world
	time.Sleep(w.within(w.weather().newsSlow))
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.run != run {
		return
	}
	if n.problem = err; err != nil {
		w.crashLocked(n)
		return
	}
	if id != n.disk {
		w.errorf("%s has %+v in memory, %+v on disk", n.disk.NodeID, id, n.disk)
	}
	n.said.ClusterID = id.ClusterID
	w.tellLocked(n, true)
}

func (n *formNode) crash() {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	n.world.crashLocked(n)
}

func (w *formWorld) crashLocked(n *formNode) {
	if n.run <= 0 {
		return
	}
	n.run = 0
	if n.stop != nil {
		n.stop()
	}
	w.tellLocked(n, false)
}

// wipe crashes the node and empties its disk. The node returns with the same name and another key.
func (n *formNode) wipe() {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.crashLocked(n)
	n.disk = Identity{Format: identityFormat, NodeID: n.disk.NodeID, Instance: w.hexLocked()}
}

// tellLocked delivers the state of n to the other nodes. The news of a death takes longer.
func (w *formWorld) tellLocked(n *formNode, alive bool) {
	n.news++
	m, number, self := n.said, n.news, n.view
	m.Alive = alive
	if alive {
		self.hear(m, number)
	}
	for _, other := range w.mu.nodes {
		if other != n && !w.mu.blind {
			w.wg.Go(func() { w.carry(n, other, m, number) })
		}
	}
}

// introduceLocked makes n hear of all living nodes.
func (w *formWorld) introduceLocked(n *formNode) {
	for _, other := range w.mu.nodes {
		if other != n && other.run > 0 && !w.mu.blind {
			m, number := other.said, other.news
			m.Alive = true
			w.wg.Go(func() { w.carry(other, n, m, number) })
		}
	}
}

// carry delivers news to the process that the node runs at the time of arrival. Like gossip, it
// repeats lost news until there is newer news.
func (w *formWorld) carry(from, to *formNode, m Member, number uint64) {
	slow := w.weather().newsSlow
	if !m.Alive {
		slow += 8 * time.Second // gossip declares a node dead only after failed pings
	}
	time.Sleep(w.within(slow))
	for {
		w.mu.Lock()
		old := w.mu.ended || from.news != number && m.Key == from.said.Key
		there := to.run > 0 && from.side == to.side
		view := to.view
		w.mu.Unlock()
		if there {
			view.hear(m, number)
			return
		}
		if old {
			return
		}
		time.Sleep(time.Second)
	}
}

// cut divides the network. Some time later, nodes of different sides see each other as dead, and
// nodes of one side find each other.
func (w *formWorld) cut(sides int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.mu.nodes {
		n.side = w.mu.rng.IntN(sides)
	}
	for _, n := range w.mu.nodes {
		if n.run > 0 {
			w.introduceLocked(n)
		}
		for _, other := range w.mu.nodes {
			if other.side != n.side {
				w.wg.Go(func() { w.loseUnreached(n, other) })
			}
		}
	}
}

func (w *formWorld) loseUnreached(n, other *formNode) {
	time.Sleep(w.within(8 * time.Second))
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.run > 0 && n.side != other.side {
		n.view.lose(other.said.Key)
	}
}

// mistake makes n see another node as dead for a while.
func (w *formWorld) mistake(n, other *formNode) {
	w.mu.Lock()
	if n.run <= 0 || n == other {
		w.mu.Unlock()
		return
	}
	n.view.lose(other.said.Key)
	w.mu.Unlock()
	w.wg.Go(func() {
		time.Sleep(w.within(8 * time.Second))
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.run > 0 && other.run > 0 && n.side == other.side {
			m := other.said
			m.Alive = true
			n.view.hear(m, other.news)
		}
	})
}

// dream picks size nodes at random and makes most of them see exactly these nodes, alive or not.
func (w *formWorld) dream(size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	drawn := map[*formNode]bool{}
	for _, i := range w.mu.rng.Perm(len(w.mu.nodes))[:size] {
		drawn[w.mu.nodes[i]] = true
	}
	for n := range drawn {
		if n.run <= 0 || w.mu.rng.Float64() < 0.2 {
			continue
		}
		for _, other := range w.mu.nodes {
			m := other.said
			m.Alive = drawn[other]
			n.view.show(m)
		}
	}
}

func (w *formWorld) reaches(a, b *formNode) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return a.side == b.side
}

// end stops all processes and waits for everything that still runs.
func (w *formWorld) end() {
	w.mu.Lock()
	w.mu.ended = true
	for _, n := range w.mu.nodes {
		w.crashLocked(n)
	}
	w.mu.Unlock()
	w.wg.Wait()
}

var errCrashed = errors.New("the process has crashed")

// formDisk is the disk as one process of a node sees it.
type formDisk struct {
	node *formNode
	run  int
}

func (d formDisk) SetPromised(set string) error {
	return d.write(func(id *Identity) {
		if seen := d.node.seesLocked(); seen != set {
			d.node.world.errorf("%s promises itself to %s and sees %s", id.Key(), set, seen)
		}
		id.Promised = set
	})
}

// seesLocked returns the set of living nodes without a cluster in the view of n.
func (n *formNode) seesLocked() string {
	var keys []string
	for _, m := range n.view.Members() {
		if m.Alive && m.ClusterID == "" {
			keys = append(keys, m.Key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, ",")
}

func (d formDisk) SetJoining(cluster string) error {
	return d.write(func(id *Identity) { id.Joining = cluster })
}

func (d formDisk) SetCluster(cluster string, founder bool) error {
	return d.write(func(id *Identity) {
		w := d.node.world
		if id.ClusterID != "" {
			w.errorf("%s gets cluster %s and has %s", id.NodeID, cluster, id.ClusterID)
		}
		if founder {
			w.verifyBoundLocked(id.Promised)
			w.mu.founded[cluster] = id.Promised
			w.admitLocked(cluster, id.Key())
		}
		id.ClusterID, id.Founder, id.Joining, id.Promised = cluster, founder, "", ""
	})
}

// verifyBoundLocked checks, when a set founds a cluster, that each of its nodes is bound to the set, has a cluster,
// or has asked a cluster for admission.
func (w *formWorld) verifyBoundLocked(set string) {
	if set == "" {
		w.errorf("a cluster is founded by nodes that have promised nothing")
	}
	for _, n := range w.mu.nodes {
		id := n.disk
		if slices.Contains(strings.Split(set, ","), id.Key()) && id.Promised != set && id.Joining == "" && id.ClusterID == "" {
			w.errorf("%s founds a cluster while %s is bound to %q", set, id.Key(), id.Promised)
		}
	}
}

// write changes the disk, unless the process has crashed. It may crash the process before or after the change.
func (d formDisk) write(change func(*Identity)) error {
	w := d.node.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.node.run != d.run {
		return errCrashed
	}
	crash := w.mu.rng.Float64() < w.mu.weather.crashes
	if crash && w.mu.rng.Float64() < 0.5 {
		w.crashLocked(d.node)
		return errCrashed
	}
	change(&d.node.disk)
	if crash {
		w.crashLocked(d.node)
		return errCrashed
	}
	return nil
}

func (w *formWorld) admitLocked(cluster, key string) {
	if w.mu.admitted[cluster] == nil {
		w.mu.admitted[cluster] = map[string]bool{}
	}
	w.mu.admitted[cluster][key] = true
}

// formAsker is the network as one process of a node sees it.
type formAsker struct {
	node *formNode
	run  int
}

func (a formAsker) Form(ctx context.Context, addr string, p Proposal) (Agreement, error) {
	return travel(ctx, a, addr, func(to *formNode) (Agreement, error) {
		w := to.world
		w.mu.Lock()
		former, run := to.former, to.run
		w.mu.Unlock()
		if former == nil {
			return Agreement{Why: "it has a cluster"}, nil
		}
		answer, err := former.HandleForm(context.Background(), p)
		w.mu.Lock()
		defer w.mu.Unlock()
		if to.run != run {
			return Agreement{}, errCrashed
		}
		return answer, err
	})
}

func (a formAsker) Join(ctx context.Context, addr string, r JoinRequest) (JoinAnswer, error) {
	return travel(ctx, a, addr, func(to *formNode) (JoinAnswer, error) {
		w := to.world
		w.mu.Lock()
		defer w.mu.Unlock()
		if to.disk.ClusterID != r.ClusterID {
			return JoinAnswer{}, errors.New("it is not of the cluster")
		}
		w.admitLocked(r.ClusterID, r.Node.Key)
		return JoinAnswer{Admitted: true}, nil
	})
}

// travel delivers a request to the process that has addr at the time of arrival, even if the caller no longer waits,
// and delivers the answer.
func travel[A any](ctx context.Context, a formAsker, addr string, handle func(*formNode) (A, error)) (A, error) {
	type reply struct {
		answer A
		err    error
	}
	w, replies := a.node.world, make(chan reply, 1)
	w.wg.Go(func() {
		now := w.weather()
		time.Sleep(w.within(now.slowest))
		to := w.nodeAt(addr)
		if to == nil || w.chance(now.lost) || !w.reaches(a.node, to) {
			return
		}
		answer, err := handle(to)
		time.Sleep(w.within(now.slowest))
		if !w.chance(now.lost) {
			replies <- reply{answer, err}
		}
	})
	select {
	case r := <-replies:
		return r.answer, r.err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

// nodeAt returns the node with a process at addr, or nil.
func (w *formWorld) nodeAt(addr string) *formNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.mu.nodes {
		if n.run > 0 && n.disk.NodeID == addr {
			return n
		}
	}
	return nil
}

// clusters returns the cluster of each node; "" for none.
func (w *formWorld) clusters() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for _, n := range w.mu.nodes {
		ids = append(ids, n.disk.ClusterID)
	}
	return ids
}

// verify checks two invariants that hold at any time: no key is in two clusters, and the catalog of
// a node's cluster has the node.
func (w *formWorld) verify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := map[string]string{}
	for cluster, keys := range w.mu.admitted {
		for key := range keys {
			if other := in[key]; other != "" {
				w.errorf("node %s is in clusters %s and %s", key, other, cluster)
			}
			in[key] = cluster
		}
	}
	for _, n := range w.mu.nodes {
		if id := n.disk; id.ClusterID != "" && in[id.Key()] != id.ClusterID {
			w.errorf("node %s has cluster %s, whose catalog has not it: %q has", id.Key(), id.ClusterID, in[id.Key()])
		}
	}
}

// verifyDisjoint checks that no node was in two sets that founded a cluster.
func (w *formWorld) verifyDisjoint() {
	w.mu.Lock()
	defer w.mu.Unlock()
	by := map[string]string{}
	for cluster, set := range w.mu.founded {
		for key := range strings.SplitSeq(set, ",") {
			if other := by[key]; other != "" {
				w.errorf("node %s is of the sets that founded %s and %s", key, other, cluster)
			}
			by[key] = cluster
		}
	}
}
