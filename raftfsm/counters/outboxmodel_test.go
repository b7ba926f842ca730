package counters

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// modelAuthor is an author in the model, a simple implementation of outboxes.
type modelAuthor struct {
	posts   int64
	ids     map[uint64]bool
	trimmed uint64
}

func (m *modelAuthor) descending() []uint64 {
	ids := slices.Sorted(maps.Keys(m.ids))
	slices.Reverse(ids)
	return ids
}

// publish returns the outcome, and whether the count overflowed.
func (m *modelAuthor) publish(id uint64, l *OutboxLimits, now int64) (outcome outboxOutcome, overflow bool) {
	if m.ids[id] {
		return outboxUnchanged, false
	}
	newest, newer := uint64(0), 0
	see := func(id uint64) {
		if l.Keep > 0 && id>>l.Shift <= uint64(now/1000)+86_400 { // not in the future
			newest = max(newest, id)
		}
	}
	see(id)
	for other := range m.ids {
		see(other)
		if other > id {
			newer++
		}
	}
	cut := uint64(0)
	if units := newest >> l.Shift; newest >= l.First && units > l.Keep {
		cut = (units - l.Keep) << l.Shift
	}
	gone := func(id uint64) bool { return id >= l.First && id < cut }
	if m.trimmed > 0 && id <= m.trimmed || gone(id) || newer >= l.Posts {
		return outboxTooOld, false
	}
	if m.posts == math.MaxInt64 {
		return outboxUnchanged, true
	}
	m.posts++
	m.ids[id] = true
	for _, id := range m.descending() {
		if gone(id) {
			delete(m.ids, id)
			m.trimmed = max(m.trimmed, id)
		}
	}
	for _, id := range m.descending()[min(l.Posts, len(m.ids)):] {
		delete(m.ids, id)
		m.trimmed = max(m.trimmed, id, 1)
	}
	return outboxChanged, false
}

// outboxAct is an op on an outbox, or on the row of an author if table is set.
type outboxAct struct {
	key   uint64
	op    PostOp
	table *engine.Op
}

func outboxSection(id *dedup.RequestID, floors *raftfsm.Settings, acts ...outboxAct) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, id)
	w.SetSettings(floors)
	for i := range acts {
		if acts[i].table != nil {
			Ops{*acts[i].table}.AppendTo(&w, acts[i].key, 0)
		} else {
			OutboxOps{{PostOp: acts[i].op}}.AppendTo(&w, acts[i].key, 0)
		}
	}
	return slices.Clone(w.Section())
}

func outboxEntry(now int64, sections ...[]byte) []byte {
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 1), time.UnixMilli(now), testLimits)
	for _, s := range sections {
		entry = append(entry, s...)
	}
	return codec.AppendChecksum(entry)
}

// outboxReplica is a replica of a shard of counters, with a disk of its own for outboxes.
type outboxReplica struct {
	*Machine
	t     rapid.TB
	fs    *vfs.MemFS
	store *cold.Store
	tight atomic.Bool
	now   uint32
}

func newOutboxReplica(t rapid.TB) *outboxReplica {
	r := &outboxReplica{t: t, fs: vfs.NewCrashableMem()}
	r.open()
	return r
}

func (r *outboxReplica) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *outboxReplica) open() {
	r.t.Helper()
	var err error
	r.store, err = cold.Open(cold.Config{Dir: "cold", FS: r.fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { r.t.Error(err) }})
	r.must(err)
	r.Machine = New(raftfsm.Places{Bodies: spill.Place{Store: r.store, Group: 1, Tight: r.tight.Load}})
}

func (r *outboxReplica) close() {
	r.t.Helper()
	r.Close()
	r.must(r.store.Close())
}

// kill restarts the replica as after a crash: it loses unsynced data on the disk, and restores a
// snapshot.
func (r *outboxReplica) kill(snapshot []byte, seed uint64) {
	r.t.Helper()
	was := r.fs
	r.fs = was.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, seed))})
	r.close()
	r.open()
	r.must(rafttest.Restore(r.Machine, snapshot))
}

// spill moves about the given number of bytes of outboxes out of memory. It moves only outboxes
// that were idle for the given time.
func (r *outboxReplica) spill(idle uint32, bytes int64) {
	r.t.Helper()
	_, err := r.Bodies().Spill(idle, bytes, func() bool { return true })
	r.must(err)
}

// onDisk returns the authors whose outboxes are on disk, ascending.
func (r *outboxReplica) onDisk(authors map[uint64]*modelAuthor) (spilled []uint64) {
	for key := range authors {
		if r.Bodies().IsSpilled(key) {
			spilled = append(spilled, key)
		}
	}
	slices.Sort(spilled)
	return spilled
}

// behind returns those of the spilled outboxes that stay on disk after an entry with the ops acts,
// because no op of the entry may change them. Ops on counts change no outbox, except OpDelete.
func behind(spilled []uint64, acts []outboxAct) []uint64 {
	left := slices.Clone(spilled)
	for i := range acts {
		a := &acts[i]
		switch {
		case a.table != nil && a.table.Kind != engine.OpDelete:
		case a.table == nil && a.op.Kind == ClearOutboxes:
			left = nil
		default:
			left = slices.DeleteFunc(left, func(key uint64) bool { return key == a.key })
		}
	}
	return left
}

// newest is like Machine.newest, but also reads the missing outboxes from disk.
func (r *outboxReplica) newest(keys []uint64, s *selection, limit int, into *newestPosts) []foundPost {
	r.t.Helper()
	into.Reset(limit)
	bodies := r.Machine.newest(keys, nil, s, into)
	for _, m := range into.Missing(nil) {
		var err error
		m.Body, err = bodies.FetchMark(context.Background(), keys[m.Author], m.Mark)
		r.must(err)
		into.Found(&m)
	}
	return into.Posts()
}

// Whatever is published, removed, counted, deleted and repeated, the numbers of posts and the
// outboxes of replicas are those of the model. An entry brings exactly the outboxes of its ops into
// memory. So an entry that only counts is applied even if all outboxes on disk are lost. The
// replica plain has all outboxes in memory. Each of the two replicas in disks has other outboxes on
// disk, restores snapshots, and crashes at any moment.
func TestOutboxesEqualModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		disks := []*outboxReplica{newOutboxReplica(t), newOutboxReplica(t)}
		replicas := func() []*Machine { return []*Machine{disks[0].Machine, disks[1].Machine} }
		plain := New(raftfsm.Places{})
		defer func() {
			for _, r := range disks {
				r.close()
			}
		}()
		which := rapid.SampledFrom(disks)
		want := map[uint64]*modelAuthor{}
		author := func(key uint64) *modelAuthor {
			if want[key] == nil {
				want[key] = &modelAuthor{ids: map[uint64]bool{}}
			}
			return want[key]
		}
		now := int64(1_000_000)
		// An id shifted right by 4 is a time in seconds since 1970. Ids below 160 have no time.
		limits := OutboxLimits{Posts: 9, Keep: 100, Shift: 4, UnitMicros: 1_000_000, First: 160}
		timeless := OutboxLimits{Posts: 9}
		floors := raftfsm.SettingsOf([]string{"posts"}, column.Settings[int64]{Floors: map[string]int64{"posts": 0}})
		keys := rapid.OneOf(rapid.Uint64Range(0, 4), rapid.Just[uint64](math.MaxUint64))
		ids := rapid.OneOf(rapid.Uint64Range(0, 12), rapid.Uint64Range(100, 200), rapid.Uint64Range(13_000, 20_000), rapid.Uint64Range(1_390_000, 1_410_000), rapid.SampledFrom([]uint64{math.MaxUint64, 1 << 63}))
		act := rapid.Custom(func(t *rapid.T) outboxAct {
			a := outboxAct{key: keys.Draw(t, "key")}
			switch kind := rapid.IntRange(0, 20).Draw(t, "kind"); {
			case kind < 11:
				a.op = PostOp{Kind: Publish, ID: ids.Draw(t, "id"), Limits: rapid.SampledFrom([]OutboxLimits{limits, limits, timeless}).Draw(t, "limits")}
			case kind < 16:
				a.op = PostOp{Kind: Unpublish, ID: ids.Draw(t, "id")}
			case kind == 16:
				a.table = &engine.Op{Kind: engine.OpDelete}
			case kind == 17:
				a.table = &engine.Op{Kind: engine.OpSet, Cells: []engine.Cell{{Value: rapid.SampledFrom([]int64{0, 7, math.MaxInt64 - 1, math.MaxInt64}).Draw(t, "posts")}}}
			case kind == 18:
				list := slices.Sorted(slices.Values(rapid.SliceOfNDistinct(ids, 0, 5, rapid.ID[uint64]).Draw(t, "ids")))
				slices.Reverse(list)
				a.op = PostOp{Kind: PutOutbox, Outbox: Outbox{IDs: list, Trimmed: rapid.SampledFrom([]uint64{0, 5, 13_500}).Draw(t, "trimmed")}}
			case kind == 19 && rapid.IntRange(0, 5).Draw(t, "really") == 0:
				a.op = PostOp{Kind: ClearOutboxes}
			default:
				a.table = &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Value: rapid.Int64Range(-2, 2).Draw(t, "delta")}}}
			}
			return a
		})
		count := rapid.Custom(func(t *rapid.T) outboxAct { // needs no outbox
			op := &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Value: rapid.Int64Range(-2, 2).Draw(t, "delta")}}}
			return outboxAct{key: keys.Draw(t, "key"), table: op}
		})
		var sent [][]byte // sections for the step "repeat"
		seq := uint64(0)
		check := func(acts []outboxAct, r *raftfsm.Result) {
			var refused []engine.Overflow
			for i := range acts {
				a, m := &acts[i], author(acts[i].key)
				unchanged := false
				switch {
				case a.table != nil && a.table.Kind == engine.OpDelete:
					*m = modelAuthor{ids: map[uint64]bool{}}
				case a.table != nil && a.table.Kind == engine.OpSet:
					m.posts = a.table.Cells[0].Value
				case a.table != nil:
					delta := a.table.Cells[0].Value
					switch {
					case delta > 0 && m.posts > math.MaxInt64-delta:
						refused = append(refused, engine.Overflow{Op: i})
					case delta < 0:
						m.posts = min(m.posts, max(0, m.posts+delta))
					default:
						m.posts += delta
					}
				case a.op.Kind == Publish:
					outcome, overflow := m.publish(a.op.ID, &a.op.Limits, now)
					unchanged = outcome == outboxUnchanged && !overflow
					if overflow {
						refused = append(refused, engine.Overflow{Op: i})
					} else if outcome == outboxTooOld {
						refused = append(refused, engine.Overflow{Op: i, Column: TooOldColumn})
					}
				case a.op.Kind == Unpublish:
					if unchanged = !m.ids[a.op.ID]; !unchanged {
						delete(m.ids, a.op.ID)
						m.posts = min(m.posts, max(0, m.posts-1))
					}
				case a.op.Kind == PutOutbox:
					m.ids, m.trimmed = map[uint64]bool{}, a.op.Outbox.Trimmed
					for _, id := range a.op.Outbox.IDs {
						m.ids[id] = true
					}
				case a.op.Kind == ClearOutboxes:
					for _, m := range want {
						m.ids, m.trimmed = map[uint64]bool{}, 0
					}
				}
				if r.Rows[i] != m.posts {
					t.Fatalf("op %d answers %d posts, want %d", i, r.Rows[i], m.posts)
				}
				if got := slices.Contains(r.Cuts, engine.Cut{Op: i, Column: UnchangedColumn}); got != unchanged {
					t.Fatalf("op %d is said to be unchanged: %v, want %v", i, got, unchanged)
				}
			}
			if !slices.Equal(r.Overflows, refused) {
				t.Fatalf("refused %v, want %v", r.Overflows, refused)
			}
			if !slices.IsSortedFunc(r.Cuts, func(a, b engine.Cut) int { return a.Op - b.Op }) {
				t.Fatalf("cuts %v do not rise", r.Cuts)
			}
		}
		apply := func(t *rapid.T, acts []outboxAct, on ...*outboxReplica) {
			seq++
			id := dedup.ByProducer([]byte("p"), seq)
			section := outboxSection(&id, floors, acts...)
			sent = append(sent, section)
			result := plain.Apply(rafttest.Next(plain, outboxEntry(now, section))).(*raftfsm.Result)
			check(acts, result)
			for _, r := range on {
				spilled := r.onDisk(want)
				got, ok := r.Apply(rafttest.Next(r, outboxEntry(now, section))).(*raftfsm.Result)
				if !ok || !slices.Equal(got.Rows, result.Rows) || !slices.Equal(got.Cuts, result.Cuts) || !slices.Equal(got.Overflows, result.Overflows) {
					t.Fatalf("answered %+v, want %+v", got, result)
				}
				if left := behind(spilled, acts); !slices.Equal(r.onDisk(want), left) {
					t.Fatalf("on disk are %v, were %v, want %v", r.onDisk(want), spilled, left)
				}
			}
		}
		write := func(t *rapid.T) { apply(t, rapid.SliceOfN(act, 1, 6).Draw(t, "acts"), disks...) }
		t.Repeat(map[string]func(*rapid.T){
			"write": write,
			"repeat": func(t *rapid.T) {
				if len(sent) == 0 {
					return
				}
				section := rapid.SampledFrom(sent[max(0, len(sent)-60):]).Draw(t, "section")
				before := plain.State().Digest
				for _, r := range append(replicas(), plain) {
					result := r.Apply(rafttest.Next(r, outboxEntry(now, section))).(*raftfsm.Result)
					if result.Outcome(0) == dedup.Applied || len(result.Cuts)+len(result.Overflows) > 0 || r.State().Digest != before {
						t.Fatalf("a repeat was applied: %+v", result)
					}
				}
			},
			"time": func(t *rapid.T) { now += rapid.Int64Range(0, 60_000).Draw(t, "ms") },
			"restore": func(t *rapid.T) { // from a snapshot of any replica, without a crash
				stream := rafttest.Persisted(t, rapid.SampledFrom(append(replicas(), plain)).Draw(t, "from"))
				if !bytes.Equal(stream, rafttest.Persisted(t, plain)) {
					t.Fatal("two replicas have different snapshots")
				}
				r := which.Draw(t, "replica")
				r.must(rafttest.Restore(r.Machine, stream))
				if again := rafttest.Persisted(t, r.Machine); !bytes.Equal(stream, again) {
					t.Fatal("a restored replica has another snapshot")
				}
				visitOutboxes(t, stream, want)
			},
			"restart": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				r.kill(rafttest.Persisted(t, r.Machine), rapid.Uint64().Draw(t, "seed"))
			},
			"tick": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				r.now++
				r.Bodies().Tick(r.now)
			},
			"tight": func(t *rapid.T) { r := which.Draw(t, "replica"); r.tight.Store(!r.tight.Load()) },
			"spill": func(t *rapid.T) {
				which.Draw(t, "replica").spill(rapid.Uint32Range(0, 2).Draw(t, "idle"), rapid.SampledFrom([]int64{0, 40, math.MaxInt64, math.MaxInt64}).Draw(t, "bytes"))
			},
			"load": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				r.must(r.Bodies().Warm(context.Background(), keys.Draw(t, "key")))
			},
			"lost": func(t *rapid.T) { // a replica loses all its outboxes on disk
				r, other := disks[0], disks[1]
				if rapid.Bool().Draw(t, "second") {
					r, other = other, r
				}
				r.Bodies().Current().Dispose()
				apply(t, rapid.SliceOfN(count, 1, 4).Draw(t, "counts"), disks...)
				if spilled := r.onDisk(want); len(spilled) > 0 {
					a := outboxAct{key: rapid.SampledFrom(spilled).Draw(t, "lost"), op: PostOp{Kind: Unpublish, ID: ids.Draw(t, "id")}}
					before := r.State()
					entry := outboxEntry(now, outboxSection(&dedup.RequestID{}, floors, count.Draw(t, "count"), a))
					if err, ok := r.Apply(rafttest.Next(r, entry)).(error); !ok || !errors.Is(err, raftfsm.ErrStuck) || !errors.Is(err, spill.ErrLost) || r.State() != before {
						t.Fatalf("an op on a lost outbox: %v, %+v, before %+v", err, r.State(), before)
					}
				}
				apply(t, []outboxAct{count.Draw(t, "count")}, other)
				r.kill(rafttest.Persisted(t, plain), rapid.Uint64().Draw(t, "seed"))
			},
			"read": func(t *rapid.T) { // a page of a timeline with all authors
				authors := slices.Sorted(maps.Keys(want))
				q, limit := selection{rapid.OneOf(rapid.Just[uint64](noLast), ids).Draw(t, "last"), rapid.IntRange(0, len(authors)).Draw(t, "below")}, rapid.IntRange(1, 8).Draw(t, "limit")
				var all []foundPost
				for i, key := range authors {
					for id := range want[key].ids {
						if id < q.last || id == q.last && i >= q.below {
							all = append(all, foundPost{ID: id, Author: i})
						}
					}
				}
				slices.SortFunc(all, func(a, b foundPost) int { return cmp.Or(cmp.Compare(b.ID, a.ID), cmp.Compare(a.Author, b.Author)) })
				var n newestPosts
				if got := which.Draw(t, "replica").newest(authors, &q, limit, &n); !slices.Equal(got, all[:min(len(all), limit)]) {
					t.Fatalf("the page %+v is %v, want the first of %v", q, got, all)
				}
			},
			"snapshot": func(t *rapid.T) { // take a snapshot, and persist it only after later writes
				r := which.Draw(t, "replica")
				at := rafttest.Persisted(t, plain)
				snapshot, err := r.Snapshot()
				r.must(err)
				defer snapshot.Release()
				write(t)
				r.spill(0, math.MaxInt64)
				for key := range want {
					r.must(r.Bodies().Warm(context.Background(), key))
				}
				write(t)
				r.spill(0, math.MaxInt64)
				var s rafttest.Sink
				r.must(snapshot.Persist(&s))
				if !bytes.Equal(s.Bytes(), at) {
					t.Fatal("a snapshot has something that was written after it")
				}
			},
			"": func(t *rapid.T) {
				sum := uint64(0)
				for key, m := range want {
					sum += engine.RowDigest(key, []int64{m.posts}) + outboxDigest(key, &Outbox{IDs: m.descending(), Trimmed: m.trimmed})
				}
				for _, r := range append(replicas(), plain) {
					if got := r.State().Digest; got != sum {
						t.Fatalf("digest %x, want %x", got, sum)
					}
					if err := rafttest.CheckTable(r.Table()); err != nil {
						t.Fatal(err)
					}
				}
				for key, m := range want {
					checkNewest(t, &outboxReplica{Machine: plain, t: t}, key, m.descending())
				}
				checkOutboxesSpilled(t, disks)
			},
		})
		for _, r := range disks {
			r.spill(0, math.MaxInt64)
			for key, m := range want {
				checkNewest(t, r, key, m.descending())
			}
		}
	})
}

// checkOutboxesSpilled compares the statistics of outboxes in memory and on disk with the outboxes.
func checkOutboxesSpilled(t *rapid.T, disks []*outboxReplica) {
	t.Helper()
	for _, r := range disks {
		var got spill.Stats
		view := r.Bodies().Current().Capture()
		for view.More() {
			key, body, err := view.Next()
			r.must(err)
			if got.Keys++; r.Bodies().IsSpilled(key) {
				got.Spilled++
				got.SpilledBytes += uint64(len(body))
			}
		}
		view.Close()
		if s := r.Bodies().Stats(); s.Keys != got.Keys || s.Spilled != got.Spilled || s.SpilledBytes != got.SpilledBytes {
			t.Fatalf("there are %+v, told %+v", got, s)
		}
	}
}

// checkNewest compares reads of an author's posts, beginning at several ids, with ids.
func checkNewest(t *rapid.T, r *outboxReplica, key uint64, ids []uint64) {
	var n newestPosts
	from := 0
	const limit = 3
	q := selection{last: noLast}
	for {
		posts := r.newest([]uint64{key}, &q, limit, &n)
		for i, p := range posts {
			if from+i >= len(ids) || p.ID != ids[from+i] {
				t.Fatalf("author %d has %v from %d on, want %v", key, posts, from, ids)
			}
		}
		if from += len(posts); len(posts) < limit {
			break
		}
		q.last, q.below = posts[len(posts)-1].ID, 1
	}
	if from != len(ids) {
		t.Fatalf("author %d has %d posts, want %v", key, from, ids)
	}
}

func visitOutboxes(t *rapid.T, stream []byte, want map[uint64]*modelAuthor) {
	found := 0
	_, err := self.VisitSnapshot(bytes.NewReader(stream), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{
		Body: func(key uint64, body any) error {
			box := body.(*Outbox)
			found++
			if m := want[key]; m == nil || !slices.Equal(box.IDs, m.descending()) || box.Trimmed != m.trimmed {
				t.Fatalf("the snapshot has %+v of author %d, want %+v", box, key, m)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range want {
		if len(m.ids) > 0 || m.trimmed > 0 {
			found--
		}
	}
	if found != 0 {
		t.Fatalf("%d outboxes too many in the snapshot", found)
	}
}
