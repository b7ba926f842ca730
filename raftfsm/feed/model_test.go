package feed

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/spill"
)

// Several replicas have different feeds in memory. Their answers, digests and snapshots equal those
// of a replica with all feeds in memory, and of a plain map. Writes, reads, moves, restores and
// kills come in random order.
func TestFeedsEqualWhereverTheyAre(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plain := New(spill.Place{})
		replicas := []*spillReplica{newSpillReplica(t), newSpillReplica(t)}
		defer func() {
			for _, r := range replicas {
				r.close()
			}
		}()
		want, stamps, groups := map[uint64][]Followee{}, map[uint64]uint64{}, modelGroups{}
		index := uint64(0)
		users := rapid.Uint64Range(0, 40)
		which := rapid.SampledFrom(replicas)
		followees := rapid.Custom(func(t *rapid.T) (list []Followee) {
			ids := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 20), 0, 6, rapid.ID[uint64]).Draw(t, "ids")
			slices.Sort(ids)
			for _, id := range ids {
				list = append(list, Followee{id, rapid.Int64Range(-2, 300).Draw(t, "posts")})
			}
			return list
		})
		write := func(ops ...Op) {
			index++
			r := plain.Apply(feedEntry(index, ops...)).(*raftfsm.Result)
			for _, replica := range replicas {
				got, ok := replica.fsm.Apply(feedEntry(index, ops...)).(*raftfsm.Result)
				if !ok || !slices.Equal(got.Rows, r.Rows) || len(got.Overflows) != len(r.Overflows) {
					t.Fatalf("answered %+v, want %+v", got, r)
				}
			}
			for i := range ops {
				if ops[i].Kind == Clear {
					clear(want)
					clear(stamps)
					clear(groups)
					continue
				}
				if ops[i].Kind.OfGroup() {
					size, refused := groups.change(&ops[i], want[ops[i].User])
					if r.Rows[i] != int64(size) || refused != slices.Contains(r.Overflows, engine.Overflow{Op: i, Column: RefusedNotFollowed}) {
						t.Fatalf("the group has %d, want %d; refused %v, want %v", r.Rows[i], size, r.Overflows, refused)
					}
					continue
				}
				now := modelFeed(&ops[i], want[ops[i].User], stamps[ops[i].User])
				if ops[i].Since > 0 && ops[i].Kind != Unfollow && len(ops[i].Followees) > 0 {
					stamps[ops[i].User] = index
				}
				groups.keepOnly(ops[i].User, now)
				if want[ops[i].User] = now; len(now) == 0 {
					delete(want, ops[i].User)
					delete(stamps, ops[i].User)
				}
				if r.Rows[i] != int64(len(now)) {
					t.Fatalf("user %d is said to follow %d, want %d", ops[i].User, r.Rows[i], len(now))
				}
			}
		}
		draw := func(t *rapid.T) Op {
			kind := rapid.SampledFrom([]OpKind{Reset, Follow, Unfollow, Read, PutGroup, PutGroup, DropGroup}).Draw(t, "kind")
			op := Op{Kind: kind, User: users.Draw(t, "user")}
			if kind.OfGroup() {
				op.Group = rapid.SampledFrom([]string{"a", "Stars.2", "z-_"}).Draw(t, "group")
			}
			switch follows := want[op.User]; {
			case kind == DropGroup:
			case kind == PutGroup && len(follows) > 0 && rapid.IntRange(0, 3).Draw(t, "follows") > 0:
				for _, f := range follows {
					if rapid.Bool().Draw(t, "in") {
						op.Followees = append(op.Followees, Followee{ID: f.ID})
					}
				}
			default:
				op.Followees = followees.Draw(t, "followees")
				stamp := stamps[op.User]
				op.Since, op.Modulus = rapid.SampledFrom([]uint64{0, 1, stamp, max(stamp, 1) - 1, stamp + 1}).Draw(t, "since"), 1
			}
			return op
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				ops := make([]Op, rapid.IntRange(1, 6).Draw(t, "ops"))
				for i := range ops {
					ops[i] = draw(t)
				}
				write(ops...)
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					write(draw(t), Op{Kind: Clear}, draw(t))
				}
			},
			"poll": func(t *rapid.T) {
				r, key := which.Draw(t, "replica"), users.Draw(t, "user")
				got, stamp, inMemory := r.fsm.Followees(nil, key)
				if inMemory == r.fsm.Bodies().IsSpilled(key) {
					t.Fatalf("user %d is in memory: %v", key, inMemory)
				}
				if !inMemory {
					var err error
					got, stamp, err = r.fsm.Fetch(t.Context(), nil, key)
					r.must(err)
					if !r.tight.Load() && r.fsm.Bodies().IsSpilled(key) {
						t.Fatalf("user %d has not come back", key)
					}
				}
				if !slices.Equal(got, want[key]) || stamp != stamps[key] {
					t.Fatalf("user %d follows %v, stamp %d, want %v, %d", key, got, stamp, want[key], stamps[key])
				}
				all, inMemory := r.fsm.Groups(key)
				if !inMemory {
					var err error
					all, err = r.fsm.FetchGroups(t.Context(), key)
					r.must(err)
				}
				groups.mustEqual(t, key, all)
			},
			"tick":  func(t *rapid.T) { which.Draw(t, "replica").tick() },
			"tight": func(t *rapid.T) { r := which.Draw(t, "replica"); r.tight.Store(!r.tight.Load()) },
			"spill": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				_, err := r.fsm.Bodies().Spill(rapid.Uint32Range(0, 2).Draw(t, "idle"), rapid.SampledFrom([]int64{0, 20, math.MaxInt64}).Draw(t, "bytes"), func() bool { return true })
				r.must(err)
			},
			"restore": func(t *rapid.T) { // restores another replica's snapshot in a running process
				r := which.Draw(t, "replica")
				r.must(rafttest.Restore(r.fsm, rafttest.Persisted(t, which.Draw(t, "from").fsm)))
			},
			"restart": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				snapshot := rafttest.Persisted(t, r.fsm)
				r.kill(snapshot, rapid.Uint64().Draw(t, "seed"))
				if s := r.fsm.State(); r.tight.Load() && s.Rows > 0 && s.ColdRows != s.Rows {
					t.Fatalf("%d users of %d are in memory, which is short", s.Rows-s.ColdRows, s.Rows)
				}
			},
			"snapshot": func(t *rapid.T) { // the snapshot is written after further changes
				r := which.Draw(t, "replica")
				snapshot, err := r.fsm.Snapshot()
				r.must(err)
				defer snapshot.Release()
				at, stampsAt, groupsAt, state := maps.Clone(want), maps.Clone(stamps), groups.clone(), r.fsm.State()
				write(draw(t), draw(t))
				r.spill(0)
				for key := range want {
					_, _, err := r.fsm.Fetch(t.Context(), nil, key)
					r.must(err)
				}
				write(draw(t))
				r.spill(0)
				var s rafttest.Sink
				r.must(snapshot.Persist(&s))
				other := New(spill.Place{})
				r.must(rafttest.Restore(other, s.Bytes()))
				for key := range users.Draw(t, "up to") + 1 {
					if got, stamp, _ := other.Followees(nil, key); !slices.Equal(got, at[key]) || stamp != stampsAt[key] {
						t.Fatalf("in the snapshot user %d follows %v, stamp %d, want %v, %d", key, got, stamp, at[key], stampsAt[key])
					}
					all, _ := other.Groups(key)
					groupsAt.mustEqual(t, key, all)
				}
				if got := other.State(); got.Digest != state.Digest || got.Rows != state.Rows || got.Index != state.Index {
					t.Fatalf("the snapshot has %+v, want %+v", got, state)
				}
			},
			"": func(t *rapid.T) {
				for _, r := range replicas {
					if got, state := r.fsm.State(), plain.State(); got.Digest != state.Digest || got.Rows != state.Rows || got.Index != state.Index {
						t.Fatalf("%+v, want %+v", got, state)
					}
					checkSpilled(t, r.fsm)
				}
			},
		})
		for _, r := range replicas {
			r.check(want, groups)
		}
	})
}

// modelGroups maps a user and the name of a group to the followees in the group.
type modelGroups map[uint64]map[string][]uint64

// change applies an op on a group, and returns the group's number of followees.
func (m modelGroups) change(op *Op, follows []Followee) (size int, refused bool) {
	if m[op.User] == nil {
		m[op.User] = map[string][]uint64{}
	}
	if op.Kind == DropGroup {
		delete(m[op.User], op.Group)
		return 0, false
	}
	list := []uint64{}
	for _, f := range op.Followees {
		if !slices.ContainsFunc(follows, func(g Followee) bool { return g.ID == f.ID }) {
			return len(m[op.User][op.Group]), true
		}
		list = append(list, f.ID)
	}
	m[op.User][op.Group] = list
	return len(list), false
}

// keepOnly removes the followees that a user no longer follows from the user's groups.
func (m modelGroups) keepOnly(user uint64, follows []Followee) {
	for name, list := range m[user] {
		m[user][name] = slices.DeleteFunc(slices.Clone(list), func(id uint64) bool {
			return !slices.ContainsFunc(follows, func(f Followee) bool { return f.ID == id })
		})
	}
}

func (m modelGroups) clone() modelGroups {
	c := modelGroups{}
	for user, groups := range m {
		c[user] = maps.Clone(groups)
	}
	return c
}

func (m modelGroups) mustEqual(t *rapid.T, user uint64, got []Group) {
	t.Helper()
	if len(got) != len(m[user]) {
		t.Fatalf("user %d has %v, want %v", user, got, m[user])
	}
	for i, g := range got {
		if want, there := m[user][g.Name]; !there || !slices.Equal(g.Followees, want) || i > 0 && got[i-1].Name >= g.Name {
			t.Fatalf("user %d has %v, want %v", user, got, m[user])
		}
	}
}

// modelFeed returns the feed after an op on a feed with the given stamp. It computes the feed with
// maps.
func modelFeed(op *Op, was []Followee, stamp uint64) (now []Followee) {
	posts, seen := map[uint64]int64{}, map[uint64]int64{}
	for _, f := range was {
		if op.Since > 0 && stamp > op.Since {
			seen[f.ID] = f.Posts
		}
		if op.Kind != Reset {
			posts[f.ID] = f.Posts
		}
	}
	for _, f := range op.Followees {
		_, follows := posts[f.ID]
		switch {
		case op.Kind == Unfollow:
			delete(posts, f.ID)
		case op.Kind == Reset, op.Kind == Follow && !follows, op.Kind == Read && follows:
			posts[f.ID] = f.Posts
			if before, overtaken := seen[f.ID]; overtaken {
				posts[f.ID] = max(f.Posts, before)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(posts)) {
		now = append(now, Followee{id, posts[id]})
	}
	return now
}
