package kinds

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/raftfsm/unread"
)

// fanOut is the naive system with which the test compares the state machines: it writes each event
// for all users to every user.
type fanOut struct {
	users    map[uint64]*inbox
	channels map[string]map[int64]bool // every notice, true while it is not retracted
	dots     map[string]*modelDot
	posts    map[uint64]int64
}

type modelDot struct {
	fired    int64
	newUsers bool
}

// inbox is the state of one user in fanOut.
type inbox struct {
	counts  map[uint8]int64
	day     int64                      // day of the last move; 0 for a new user
	notices map[string]map[int64]bool  // unread notices by channel, for channels that the user has read
	read    map[string]int64           // by channel, the last notice that was read
	dots    map[string]bool            // whether each dot is shown
	feed    map[uint64]map[string]bool // by followee, an entry for each unread post
	then    map[uint64]int64
}

func newFanOut() *fanOut {
	return &fanOut{map[uint64]*inbox{}, map[string]map[int64]bool{}, map[string]*modelDot{}, map[uint64]int64{}}
}

func (f *fanOut) user(id uint64) *inbox {
	if f.users[id] == nil {
		f.users[id] = &inbox{counts: map[uint8]int64{}, then: map[uint64]int64{}}
		f.users[id].forget()
	}
	return f.users[id]
}

func (u *inbox) forget() {
	u.day, u.notices, u.read, u.dots = 0, map[string]map[int64]bool{}, map[string]int64{}, map[string]bool{}
}

// see records a move of a user. A new user gets all dots that were fired.
func (f *fanOut) see(u *inbox, day int64) {
	if u.day == 0 {
		for name, d := range f.dots {
			u.dots[name] = d.fired > 0
		}
	}
	u.day = day
}

func (f *fanOut) makeChannel(name string) {
	if f.channels[name] == nil {
		f.channels[name] = map[int64]bool{}
	}
}

func (f *fanOut) makeDot(name string) {
	if f.dots[name] == nil {
		f.dots[name] = &modelDot{newUsers: true}
	}
}

func (f *fanOut) publish(channel string) int64 {
	f.makeChannel(channel)
	seq := int64(len(f.channels[channel])) + 1
	f.channels[channel][seq] = true
	for _, u := range f.users {
		if u.notices[channel] != nil {
			u.notices[channel][seq] = true
		}
	}
	return seq
}

func (f *fanOut) retract(channel string, seq int64) bool {
	if _, there := f.channels[channel][seq]; !there {
		return false
	}
	f.channels[channel][seq] = false
	for _, u := range f.users {
		delete(u.notices[channel], seq)
	}
	return true
}

// readTo marks the notices of a channel up to a number as read. A user who is new to the channel first gets
// all its notices.
func (f *fanOut) readTo(u *inbox, channel string, seq int64) {
	if u.notices[channel] == nil {
		u.notices[channel] = map[int64]bool{}
		for n, there := range f.channels[channel] {
			if there {
				u.notices[channel][n] = true
			}
		}
	}
	maps.DeleteFunc(u.notices[channel], func(n int64, _ bool) bool { return n <= seq })
	u.read[channel] = max(u.read[channel], seq)
}

func (f *fanOut) fire(dot string) {
	f.makeDot(dot)
	f.dots[dot].fired++
	for _, u := range f.users {
		if u.day > 0 {
			u.dots[dot] = true
		}
	}
}

// setPosts sets an author's number of posts, and stores each unread post for every follower.
func (f *fanOut) setPosts(author uint64, now int64) {
	f.posts[author] = now
	for _, u := range f.users {
		if then, follows := u.then[author]; follows {
			u.feed[author] = map[string]bool{}
			for n := then; n < now; n++ {
				u.feed[author][fmt.Sprint(n)] = true
			}
		}
	}
}

// machines are the state machines that are compared with fanOut.
type machines struct {
	t      *rapid.T
	unread *unread.Machine
	feed   *feed.Machine
	board  *unread.BoardMachine
	index  uint64
	now    time.Time
	key    int
}

func (m *machines) apply(fsm raftfsm.Machine, kind codec.Kind, fill func(*raftfsm.RequestWriter)) *raftfsm.Result {
	m.index++
	m.key++
	var w raftfsm.RequestWriter
	id := dedup.ByKey([]byte(fmt.Sprint("key", m.key)), []byte("body"))
	w.Reset(nil, codec.Whole, &id)
	fill(&w)
	apply := func() *raftfsm.Result {
		entry := dedup.AppendClock(codec.BeginEntry(nil, kind, 16), m.now, dedup.Limits{KeyHorizon: time.Hour, KeysMax: 1000, ProducerIdle: time.Hour, ProducersMax: 10})
		return fsm.Apply(&raft.Log{Index: m.index, Type: raft.LogCommand, Data: codec.AppendChecksum(append(entry, w.Section()...))}).(*raftfsm.Result)
	}
	first := apply()
	m.index++
	before := fsm.State().Digest
	if again := apply(); again.Outcome(0) == dedup.Applied || fsm.State().Digest != before {
		m.t.Fatalf("a repeat of a write to %s was applied: outcome %d", kind, again.Outcome(0))
	}
	return first
}

func (m *machines) count(op engine.Op) *raftfsm.Result {
	return m.apply(m.unread, codec.KindUnread, func(w *raftfsm.RequestWriter) { counters.Ops{op}.AppendTo(w, op.ID, 0) })
}

func (m *machines) move(user uint64, kind engine.OpKind, number uint8, seq int64) {
	op := engine.Op{ID: user, Kind: kind, Cells: []engine.Cell{{Column: number, Value: seq + 1}}}
	m.apply(m.unread, codec.KindUnread, func(w *raftfsm.RequestWriter) { unread.CursorOps{op}.AppendTo(w, user, 0) })
}

func (m *machines) publishes(op unread.BoardOp) *raftfsm.Result {
	return m.apply(m.board, codec.KindBoard, func(w *raftfsm.RequestWriter) { op.AppendTo(w, 0, 0) })
}

func (m *machines) follows(op feed.Op) {
	m.apply(m.feed, codec.KindFeed, func(w *raftfsm.RequestWriter) { feed.Ops{op}.AppendTo(w, op.User, 0) })
}

// reopen replaces each machine by a machine restored from its snapshot.
func (m *machines) reopen() {
	unread, feed, board := unread.New(), feed.New(spill.Place{}), unread.NewBoard()
	for from, to := range map[raftfsm.Machine]raftfsm.Machine{m.unread: unread, m.feed: feed, m.board: board} {
		if err := rafttest.Restore(to, rafttest.Persisted(m.t, from)); err != nil {
			m.t.Fatal(err)
		}
		if from.State().Digest != to.State().Digest || from.State().Rows != to.State().Rows || from.Applied() != to.Applied() {
			m.t.Fatalf("restored %+v, was %+v", to.State(), from.State())
		}
	}
	m.unread, m.feed, m.board = unread, feed, board
}

// TestUnreadEqualsFanOut: after any ops, sweeps and restores, every number is the same as if each
// event had been written to every user.
func TestUnreadEqualsFanOut(t *testing.T) {
	t.Parallel()
	const idle = 3 * 24 * time.Hour
	userIDs := []uint64{0, 1, 7, 1<<64 - 1}
	channels, dots := []string{"news", "ads"}, []string{"shop", "me"}
	rapid.Check(t, func(t *rapid.T) {
		f := newFanOut()
		m := &machines{t: t, unread: unread.New(), feed: feed.New(spill.Place{}), board: unread.NewBoard(), now: time.UnixMilli(20_000 * 24 * time.Hour.Milliseconds())}
		user := rapid.SampledFrom(userIDs)
		channel, dot := rapid.SampledFrom(channels), rapid.SampledFrom(dots)
		author := rapid.SampledFrom([]uint64{2, 3, 500, 1<<64 - 1})
		authors := rapid.Custom(func(t *rapid.T) []uint64 {
			list := rapid.SliceOfNDistinct(author, 0, 4, func(id uint64) uint64 { return id }).Draw(t, "authors")
			slices.Sort(list)
			return list
		})
		dayOf := func(at time.Time) int64 { return max(1, at.UnixMilli()/(24*time.Hour).Milliseconds()) }
		today := func() int64 { return dayOf(m.now) }
		followees := func(ids []uint64) (list []feed.Followee) {
			for _, id := range ids {
				list = append(list, feed.Followee{ID: id, Posts: f.posts[id]})
			}
			return list
		}
		t.Repeat(map[string]func(*rapid.T){
			"count": func(t *rapid.T) {
				id, column, by := user.Draw(t, "user"), rapid.Uint8Range(0, 4).Draw(t, "column"), rapid.Int64Range(-5, 70_000).Draw(t, "by")
				m.count(engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: by}}})
				f.user(id).counts[column] += by
			},
			"take": func(t *rapid.T) {
				id, column, seen := user.Draw(t, "user"), rapid.Uint8Range(0, 4).Draw(t, "column"), rapid.Int64Range(0, 80_000).Draw(t, "seen")
				r := m.count(engine.Op{ID: id, Kind: engine.OpTake, Cells: []engine.Cell{{Column: column, Value: seen}}})
				took := min(seen, max(0, f.user(id).counts[column]))
				f.user(id).counts[column] -= took
				if r.Rows[column] != took {
					t.Fatalf("took %d, want %d", r.Rows[column], took)
				}
			},
			"publish": func(t *rapid.T) {
				name := channel.Draw(t, "channel")
				if r, want := m.publishes(unread.BoardOp{Kind: unread.Publish, Name: name}), f.publish(name); r.Rows[1] != want {
					t.Fatalf("notice %d, want %d", r.Rows[1], want)
				}
			},
			"retract": func(t *rapid.T) {
				name, seq := channel.Draw(t, "channel"), rapid.Int64Range(0, 12).Draw(t, "seq")
				r := m.publishes(unread.BoardOp{Kind: unread.Retract, Name: name, Seq: seq})
				if f.retract(name, seq) == (len(r.Overflows) > 0) {
					t.Fatalf("retracting %d of %s: refused %v", seq, name, r.Overflows)
				}
			},
			"read": func(t *rapid.T) {
				id, name := user.Draw(t, "user"), channel.Draw(t, "channel")
				m.publishes(unread.BoardOp{Kind: unread.MakeChannel, Name: name})
				f.makeChannel(name)
				c := m.board.View().Channels[name]
				kind, seq := rapid.SampledFrom([]engine.OpKind{unread.Raise, unread.Begin}).Draw(t, "kind"), rapid.Int64Range(0, c.Latest).Draw(t, "seq")
				m.move(id, kind, c.Number, seq)
				u := f.user(id)
				f.see(u, today())
				if kind == unread.Raise || u.notices[name] == nil {
					f.readTo(u, name, seq)
				}
			},
			"fire": func(t *rapid.T) {
				name := dot.Draw(t, "dot")
				m.publishes(unread.BoardOp{Kind: unread.Fire, Name: name})
				f.fire(name)
			},
			"new users": func(t *rapid.T) {
				name, are := dot.Draw(t, "dot"), rapid.Bool().Draw(t, "are")
				m.publishes(unread.BoardOp{Kind: unread.SetDot, Name: name, NewUsers: are})
				if f.dots[name] == nil {
					f.dots[name] = &modelDot{}
				}
				f.dots[name].newUsers = are
			},
			"clear": func(t *rapid.T) {
				id, name := user.Draw(t, "user"), dot.Draw(t, "dot")
				m.publishes(unread.BoardOp{Kind: unread.MakeDot, Name: name})
				f.makeDot(name)
				d := m.board.View().Dots[name]
				m.move(id, unread.Raise, d.Number, d.Fired)
				u := f.user(id)
				f.see(u, today())
				u.dots[name] = false
			},
			"post": func(t *rapid.T) {
				id, by := author.Draw(t, "author"), rapid.Int64Range(-3, 5).Draw(t, "by")
				f.setPosts(id, f.posts[id]+by)
			},
			"feed": func(t *rapid.T) {
				id, list := user.Draw(t, "user"), authors.Draw(t, "followees")
				kind := rapid.SampledFrom([]feed.OpKind{feed.Reset, feed.Follow, feed.Unfollow, feed.Read}).Draw(t, "kind")
				m.follows(feed.Op{Kind: kind, User: id, Followees: followees(list)})
				u := f.user(id)
				if kind == feed.Reset {
					u.then = map[uint64]int64{}
				}
				for _, a := range list {
					_, there := u.then[a]
					switch {
					case kind == feed.Unfollow:
						delete(u.then, a)
						delete(u.feed, a)
					case kind == feed.Reset, kind == feed.Follow && !there, kind == feed.Read && there:
						u.then[a] = f.posts[a]
					}
				}
				u.feed = map[uint64]map[string]bool{}
				for a := range u.then {
					f.setPosts(a, f.posts[a])
				}
			},
			"days": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "hours")) * time.Hour)
				for step := 0; m.unread.Sweep().Due(m.now, idle); step++ {
					m.apply(m.unread, codec.KindUnread, func(w *raftfsm.RequestWriter) { unread.AppendSweep(w, idle, 1) })
					if step > 20 {
						t.Fatal("the sweep does not end")
					}
				}
				for _, u := range f.users {
					if u.day < dayOf(m.now.Add(-idle)) {
						u.forget()
					}
				}
			},
			"reopen": func(*rapid.T) { m.reopen() },
			"":       func(t *rapid.T) { m.mustEqual(t, f, userIDs) },
		})
	})
}

func (m *machines) mustEqual(t *rapid.T, f *fanOut, users []uint64) {
	board := m.board.View()
	if len(board.Channels) != len(f.channels) || len(board.Dots) != len(f.dots) {
		t.Fatalf("the board has %+v, want %v and %v", board, f.channels, f.dots)
	}
	for name, c := range board.Channels {
		if c.Latest != int64(len(f.channels[name])) {
			t.Fatalf("%s has %d notices, want %d", name, c.Latest, len(f.channels[name]))
		}
	}
	for _, id := range users {
		u := f.user(id)
		var row, cursors [engine.ColumnsMax]int64
		m.unread.Table().Get(id, row[:])
		m.unread.Cursors().Get(id, cursors[:])
		for column, want := range u.counts {
			if row[column] != want {
				t.Fatalf("user %d column %d: %d, want %d", id, column, row[column], want)
			}
		}
		for name, c := range board.Channels {
			last, seen := c.LastRead(cursors[:])
			if seen != (u.notices[name] != nil) || seen && (last != u.read[name] || c.Unread(last) != int64(len(u.notices[name]))) {
				t.Fatalf("user %d in %s: seen %v, read %d, %d unread; want %+v", id, name, seen, last, c.Unread(last), u)
			}
		}
		for name, d := range board.Dots {
			want := u.dots[name]
			if u.day == 0 {
				want = f.dots[name].fired > 0 && f.dots[name].newUsers
			}
			if d.Shows(cursors[:]) != want {
				t.Fatalf("user %d, dot %s: %v, want %+v", id, name, !want, u)
			}
		}
		m.feedMustEqual(t, f, id)
	}
}

func (m *machines) feedMustEqual(t *rapid.T, f *fanOut, id uint64) {
	u := f.user(id)
	got, _, _ := m.feed.Followees(nil, id)
	if len(got) != len(u.then) {
		t.Fatalf("user %d follows %v, want %v", id, got, u.then)
	}
	for _, followee := range got {
		if then, follows := u.then[followee.ID]; !follows || then != followee.Posts || followee.Unread(f.posts[followee.ID]) != int64(len(u.feed[followee.ID])) {
			t.Fatalf("user %d, followee %+v: want %v and %d unread", id, followee, then, len(u.feed[followee.ID]))
		}
	}
}
