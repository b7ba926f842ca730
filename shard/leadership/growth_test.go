package leadership

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// growShard is the state machine of a shard without contents, which can be unborn or stuck.
type growShard struct {
	unborn, stuck atomic.Bool
}

func (s *growShard) Apply(*raft.Log) any { return nil }
func (s *growShard) ApplyBatch(entries []*raft.Log) []any {
	return make([]any, len(entries))
}
func (s *growShard) Snapshot() (raft.FSMSnapshot, error) {
	if s.unborn.Load() {
		return nil, raftfsm.ErrUnborn
	}
	return emptySnapshot{}, nil
}
func (s *growShard) Restore(state io.ReadCloser) error { return state.Close() }
func (s *growShard) Stuck() error {
	if s.stuck.Load() {
		return raftfsm.ErrStuck
	}
	return nil
}
func (s *growShard) Unborn() bool      { return s.unborn.Load() }
func (s *growShard) Barred() bool      { return false }
func (s *growShard) Begun(uint32)      {}
func (s *growShard) GrewAt() uint64    { return 0 }
func (s *growShard) AdoptedAt() uint64 { return 0 }
func (s *growShard) Restores() uint64  { return 0 }
func (s *growShard) Abandoned() uint64 { return 0 }

type emptySnapshot struct{}

func (emptySnapshot) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (emptySnapshot) Release()                             {}

// growVoter is a node with one replica.
type growVoter struct {
	key     string
	m       *Membership
	r       *replica.Replica
	shard   *growShard
	unready atomic.Bool
	large   atomic.Bool   // above a bound
	steps   atomic.Uint64 // while it is unready, it parts its rows
	silent  atomic.Bool
	damaged atomic.Bool
	parked  atomic.Bool
}

const growGroup = 7

func (v *growVoter) Replica(group uint32) *replica.Replica {
	if group != growGroup || v.silent.Load() {
		return nil
	}
	return v.r
}
func (v *growVoter) Replicas() []*replica.Replica { return []*replica.Replica{v.r} }
func (v *growVoter) Damaged(uint32) bool          { return v.damaged.Load() }
func (v *growVoter) LedBy(string) int             { return 0 }
func (v *growVoter) Parked(uint32) bool           { return v.parked.Load() }
func (v *growVoter) Check(_ uint32, parts int) error {
	if v.unready.Load() && parts == 3 {
		return raftfsm.ErrTooLarge
	}
	return nil
}
func (v *growVoter) Prepare(_, attempt uint32) error {
	if n := v.steps.Load(); n > 0 {
		return &tiering.PreparingError{Steps: n}
	}
	if v.large.Load() {
		return raftfsm.ErrTooLarge
	}
	if v.unready.Load() || attempt != 9 {
		return errors.New("it still reads")
	}
	return nil
}

func newGrowVoters(t *testing.T) []*growVoter {
	t.Helper()
	var nodes rafttest.Nodes
	var all []*growVoter
	var first []replica.Member
	var cfgs []replica.Config
	for _, key := range []string{"a", "b", "c"} {
		v := &growVoter{key: key, shard: &growShard{}}
		calls, mux := nodes.Node(t, key, map[string]rpc.Handler{
			methodProgress: rpc.JSON(func(ctx context.Context, q []raftstore.ReplicaID) ([]uint64, error) { return v.m.serveProgress(ctx, q) }),
			methodUnborn:   rpc.JSON(func(ctx context.Context, q []raftstore.ReplicaID) ([]uint64, error) { return v.m.serveUnborn(ctx, q) }),
			methodGrowth:   rpc.JSON(func(ctx context.Context, q growthQuestion) (growthAnswer, error) { return v.m.serveGrowth(ctx, q) }),
		}, nil)
		v.m = NewMembership(MembershipConfig{
			Key: key, Catalog: catalog.New(), Calls: calls, Replicas: v, Unfit: func() error { return nil }, Wake: func() {}, Grower: v,
			Logger: slog.New(slog.DiscardHandler), Limited: slog.New(slog.DiscardHandler),
		})
		cfgs = append(cfgs, replica.Config{
			Dir: t.TempDir(), Group: growGroup, NodeID: key, FSM: v.shard, Machine: v.shard, Mux: mux, Fatal: func(err error) { t.Error(err) },
		})
		first = append(first, replica.Member{ID: replica.RaftID(key, 0), Addr: mux.Addr().String()})
		all = append(all, v)
	}
	for i, v := range all {
		cfgs[i].Initial = first
		var err error
		v.r, err = replica.Open(cfgs[i])
		must.Do(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), must.BecomeMax)
			defer cancel()
			must.Do(t, v.r.Close(ctx, false))
		})
	}
	return all
}

// elected waits for a leader, which may be unborn, and returns it and another voter.
func elected(t *testing.T, all []*growVoter) (leader, other *growVoter) {
	t.Helper()
	must.Become(t, "a replica leads", func() bool {
		for i, v := range all {
			if v.r.Growth.Elected() {
				leader, other = v, all[(i+1)%len(all)]
			}
		}
		return leader != nil
	})
	return leader, other
}

// A stuck, unborn or damaged voter has not caught up, unless the leader is unborn too. Then each voter with the
// log has.
func TestWhoHasCaughtUp(t *testing.T) {
	t.Parallel()
	all := newGrowVoters(t)
	leader, other := elected(t, all)
	counts := func() bool {
		method := methodProgress
		if leader.shard.unborn.Load() {
			method = methodUnborn
		}
		lag, err := leader.m.behind(t.Context(), leader.r, other.r.ID(), method)
		return err == nil && lag <= replica.CaughtUpEntries
	}
	must.Become(t, "the other voter has caught up", counts)
	for name, set := range map[string]func(*growVoter, bool){
		"unborn":  func(v *growVoter, to bool) { v.shard.unborn.Store(to) },
		"stuck":   func(v *growVoter, to bool) { v.shard.stuck.Store(to) },
		"damaged": func(v *growVoter, to bool) { v.damaged.Store(to) },
	} {
		set(other, true)
		if counts() {
			t.Errorf("a voter that is %s counts as caught up", name)
		}
		leader.shard.unborn.Store(true)
		if !counts() {
			t.Errorf("a voter that is %s does not count, although the leader is unborn", name)
		}
		leader.shard.unborn.Store(false)
		set(other, false)
	}
	if !counts() {
		t.Error("the other voter has not caught up any more")
	}
	leader.shard.unborn.Store(true)
	if led, _ := leader.m.ToHandOver(); led != 1 {
		t.Errorf("a node that stops hands over %d groups", led)
	}
}

// MaySplit holds the conditions of R2.
func TestMaySplit(t *testing.T) {
	t.Parallel()
	all := newGrowVoters(t)
	leader, other := elected(t, all)
	must.Become(t, "the leader is ready", func() bool { return leader.r.Ready() == nil })
	third := all[slices.IndexFunc(all, func(v *growVoter) bool { return v != leader && v != other })]
	here := []string{"c", "a", "b"}
	for name, c := range map[string]struct {
		nodes           []string
		unready, silent []*growVoter
		patient         string // whether the patient leader may split: "yes" or why not
		later           string
	}{
		"all are ready":            {here, nil, nil, "yes", "yes"},
		"a voter is not ready":     {here, []*growVoter{other}, nil, "still reads", "yes"},
		"a majority is not ready":  {here, []*growVoter{other, third}, nil, "still reads", "1 of 3"},
		"the leader is not ready":  {here, []*growVoter{leader}, nil, "still reads", "still reads"},
		"a voter is silent":        {here, nil, []*growVoter{other}, "yes", "yes"},
		"two voters are silent":    {here, nil, []*growVoter{other, third}, "1 of 3", "1 of 3"},
		"a child is elsewhere":     {[]string{"a", "b", "d"}, nil, nil, "its voters are on", "its voters are on"},
		"a child has fewer voters": {[]string{"a", "b"}, nil, nil, "its voters are on", "its voters are on"},
	} {
		for _, v := range all {
			v.unready.Store(slices.Contains(c.unready, v))
			v.silent.Store(slices.Contains(c.silent, v))
		}
		for patient, want := range map[bool]string{true: c.patient, false: c.later} {
			_, err := leader.m.MaySplit(t.Context(), leader.r, 9, c.nodes, patient)
			if (err == nil) != (want == "yes") || err != nil && (!errors.Is(err, ErrUnready) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, patient %v: %v, want %s", name, patient, err, want)
			}
		}
	}
	for _, v := range all {
		v.unready.Store(false)
		v.silent.Store(false)
	}
	if _, err := leader.m.MaySplit(t.Context(), leader.r, 8, here, true); !errors.Is(err, ErrUnready) {
		t.Errorf("another attempt: %v", err)
	}
	if _, err := other.m.MaySplit(t.Context(), other.r, 9, here, true); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("a follower: %v", err)
	}
	third.steps.Store(8)
	for patient, want := range map[bool]error{true: ErrUnready, false: nil} {
		steps, err := leader.m.MaySplit(t.Context(), leader.r, 9, here, patient)
		if !errors.Is(err, want) || steps[third.r.ID()] != 8 || steps[other.r.ID()] != 0 {
			t.Errorf("while a voter parts its rows, patient %v: %v, steps %v", patient, err, steps)
		}
	}
	third.steps.Store(0)
	third.large.Store(true)
	for _, patient := range []bool{true, false} {
		if _, err := leader.m.MaySplit(t.Context(), leader.r, 9, here, patient); !errors.Is(err, ErrUnready) || !strings.Contains(err.Error(), "too large") {
			t.Errorf("with a voter that would copy too much, patient %v: %v", patient, err)
		}
	}
	third.large.Store(false)
	leader.damaged.Store(true)
	if _, err := leader.m.MaySplit(t.Context(), leader.r, 9, here, false); !errors.Is(err, ErrUnready) {
		t.Errorf("a damaged leader: %v", err)
	}
}

// No parent is split before each voter that answers finds that all parents may be split.
func TestMayAllSplit(t *testing.T) {
	t.Parallel()
	all := newGrowVoters(t)
	view := &catalog.View{Nodes: map[string]catalog.Node{}, Groups: map[uint32]catalog.Placement{growGroup: {Target: []string{"a", "b", "c"}}}}
	for _, v := range all {
		view.Nodes[v.key] = catalog.Node{Key: v.key}
	}
	check := func(want string, groups ...uint32) {
		t.Helper()
		if err := all[0].m.MayAllSplit(t.Context(), view, groups, 3); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	check("", growGroup)
	check("no voter of group 8 answers", growGroup, 8)
	all[2].unready.Store(true)
	check("too large", growGroup)
	all[2].silent.Store(true)
	check("", growGroup)
	all[0].silent.Store(true)
	all[1].silent.Store(true)
	check("no voter of group 7 answers", growGroup)
}

// A child has begun once a majority of its voters has a finished snapshot.
func TestSavedByAMajority(t *testing.T) {
	t.Parallel()
	all := newGrowVoters(t)
	leader, _ := elected(t, all)
	for i, v := range all {
		if got := leader.m.Saved(t.Context(), leader.r); got != (i >= 2) {
			t.Errorf("saved by %d of 3: %v", i, got)
		}
		must.Become(t, "a snapshot is taken", func() bool { return v.r.Snapshotter().Take() == nil && v.r.Snapshots().NewestIndex() > 0 })
	}
	all[0].silent.Store(true)
	if !leader.m.Saved(t.Context(), leader.r) && leader != all[0] {
		t.Error("two of three have a snapshot")
	}
}

// An unborn leader hands over to a voter that has adopted the part. If there is none and its node lacks the
// part, it hands over to a voter whose node has it.
func TestUnbornLeaderHandsOver(t *testing.T) {
	t.Parallel()
	all := newGrowVoters(t)
	view := &catalog.View{Nodes: map[string]catalog.Node{}}
	for _, v := range all {
		v.shard.unborn.Store(true)
	}
	for _, s := range all[0].r.Configuration().Servers {
		view.Nodes[replica.NodeOf(s.ID)] = catalog.Node{ClusterAddr: string(s.Address), State: catalog.NodeActive}
	}
	stays := func(why string) {
		t.Helper()
		leader, _ := elected(t, all)
		if step, err := leader.m.shedUnborn(t.Context(), leader.r, view); step != "" || err != nil {
			t.Errorf("%s: %q, %v", why, step, err)
		}
	}
	moves := func(leader, other *growVoter) {
		t.Helper()
		must.Become(t, "the other voter leads", func() bool {
			_, _ = leader.m.shedUnborn(t.Context(), leader.r, view)
			return other.r.Growth.Elected()
		})
	}
	leader, other := elected(t, all)
	stays("nobody has the part")
	leader.parked.Store(true)
	other.parked.Store(true)
	stays("the leader has the part")
	leader.parked.Store(false)
	moves(leader, other)
	leader.shard.unborn.Store(false)
	moves(other, leader)
}

// The decisions of R5 and R8.
func TestRemedy(t *testing.T) {
	t.Parallel()
	waits, notStaged, other := Adopting{Stuck: raftfsm.ErrNoPart, HasParent: true}, raftfsm.ErrNotStaged, raftfsm.ErrOtherPart
	with := func(change func(*Adopting)) Adopting {
		a := waits
		change(&a)
		return a
	}
	for name, c := range map[string]struct {
		is   Adopting
		want Remedy
	}{
		"the parent has not split":              {waits, RemedyWait},
		"the parent has not split for a minute": {with(func(a *Adopting) { a.Since = time.Minute }), RemedyRepair},
		"the part is parked":                    {with(func(a *Adopting) { a.Parked, a.HasSplit = true, true }), RemedyReopen},
		"the part differs":                      {with(func(a *Adopting) { a.Parked, a.Stuck = true, other }), RemedyRepair},
		"it differs, no other has it":           {with(func(a *Adopting) { a.HasSplit, a.Replays, a.Unrepaired, a.Stuck = true, true, true, other }), RemedyParent},
		"it differed and was made anew":         {with(func(a *Adopting) { a.Parked, a.HasSplit, a.Unrepaired, a.Stuck = true, true, true, other }), RemedyReopen},
		"its members are not staged":            {with(func(a *Adopting) { a.Parked, a.HasSplit, a.Stuck = true, true, notStaged }), RemedyRepair},
		"its members are damaged":               {with(func(a *Adopting) { a.Parked, a.Stuck = true, raftfsm.ErrStuck }), RemedyRepair},
		"the parent is absent or stuck":         {with(func(a *Adopting) { a.HasParent = false }), RemedyRepair},
		"the part was taken":                    {with(func(a *Adopting) { a.HasSplit, a.Replays = true, true }), RemedyRepair},
		"the part was taken, no other has it":   {with(func(a *Adopting) { a.HasSplit, a.Replays, a.Unrepaired = true, true, true }), RemedyParent},
		"the parent's snapshot is beyond Split": {with(func(a *Adopting) { a.HasSplit, a.Unrepaired = true, true }), RemedyRepair},
	} {
		if got := c.is.Remedy(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
