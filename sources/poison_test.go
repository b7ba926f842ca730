package sources

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
)

// poisons has one bad message of each kind in docs/SOURCES.md, and a part of the reason why it
// cannot be applied. TestPoison of package source tests the kinds of bad JSON.
var poisons = []struct{ message, reason string }{
	{`not JSON`, "op: not an object"},
	{``, "empty"},
	{`{"keyspace":"posts","id":"x","add":{"like":1}}`, "id: not an unsigned 64-bit integer"},
	{`{"keyspace":"nobody","id":1,"add":{"like":1}}`, "nobody"},
	{`{"keyspace":"posts","id":1,"add":{"likes":1}}`, "likes"},
	{`{"keyspace":"posts","id":1,"column":"likes","member":7,"set":true}`, "likes"},
	{`{"user":1,"add":{"likes":1}}`, "likes"},
	{`[{"keyspace":"posts","id":1,"add":{"like":1}},{"keyspace":"posts","id":1,"add":{"likes":1}}]`, "likes"},
	{`[{"keyspace":"posts","id":1,"add":{"like":1}},{"keyspace":"posts","id":-1,"add":{"like":1}}]`, "[1].id"},
	{`{"keyspace":"posts","id":2,"add":{"like":9223372036854775807}}`, "the sum overflows"}, // row 2 already has the count 1
}

// TestPoison tests how a node treats each kind of bad message between good ones.
func TestPoison(t *testing.T) {
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(2))
	need(st.put(""))(t)
	read := uint64(1)
	good := int64(0)
	onError := func(does string) {
		st.t.Helper()
		need(st.Pause(ctx, "likes"))(t) // pause first, so that no reader continues with the previous configuration
		need(st.put(`,"on-error":"` + does + `"`))(t)
		need(st.Resume(ctx, "likes"))(t)
	}
	next := func() { // a good message
		st.t.Helper()
		st.queue.add(0, like(1))
		good++
		read++
		st.eventually("all is read", through(read))
		if got := st.count(1); got != good {
			t.Fatalf("row 1 is %d, want %d", got, good)
		}
	}
	next()
	for i, p := range poisons {
		st.queue.add(0, p.message)
		read++
		next()
		st.queue.set(func() {
			if len(st.queue.letters) != i+1 || st.queue.letters[i] != p.message || !strings.Contains(st.queue.reasons[i], p.reason) {
				t.Fatalf("%s: dead letters %q, reasons %q", p.message, st.queue.letters, st.queue.reasons)
			}
		})
	}
	if of := need(st.Get(ctx, "likes"))(t); of.Rejected != uint64(len(poisons)) {
		t.Errorf("%d are rejected", of.Rejected)
	}

	onError("skip")
	for _, p := range poisons {
		st.queue.add(0, p.message)
		read++
	}
	next()
	st.queue.set(func() {
		if len(st.queue.letters) != len(poisons) {
			t.Errorf("dead letters of what is skipped: %q", st.queue.letters[len(poisons):])
		}
	})

	for _, kind := range []int{0, 4, 7} { // the indexes in poisons of bad JSON, a missing column, and a list with good and bad ops
		p := poisons[kind]
		onError("stop")
		st.queue.add(0, like(1), p.message, like(1))
		of := st.eventually("it stalls", func(of *Source) bool { return of.State == source.StateStalled })
		if at := of.Partitions[0].Position; !strings.Contains(of.Reason, p.reason) || at == nil || at.Lo != read+1 {
			t.Errorf("%s: %+v, want position %d", p.message, of, read+1)
		}
		if got := st.count(1); got != good+1 {
			t.Errorf("%s: row 1 is %d, want %d", p.message, got, good+1)
		}
		onError("skip")
		read, good = read+3, good+2
		st.eventually("it goes on", through(read))
	}
	if got := st.count(1); got != good {
		t.Errorf("row 1 is %d, want %d", got, good)
	}
	if got := st.count(2); got != 1 {
		t.Errorf("row 2 is %d", got)
	}
}

// If a message's sum overflows, only this message is refused. Good messages for the same row in the
// same batch count.
func TestPoisonedBatch(t *testing.T) {
	st, ctx := start(t, 1), t.Context()
	repost := func(by string) string { return `{"keyspace":"posts","id":1,"add":{"repost":` + by + `}}` }
	const most = "9223372036854775807"
	for range 50 {
		st.queue.add(0, like(1), repost("1"), `{"keyspace":"posts","id":1,"add":{"like":1,"comment":1}}`)
	}
	st.queue.add(0, repost(most))
	for range 50 {
		st.queue.add(0, like(1), repost("1"))
	}
	need(st.put(""))(t)
	st.eventually("all is read", through(251))
	row := func() (counts [3]int64) {
		ks := st.node.Keyspace("posts")
		all := make([]int64, len(ks.Columns))
		need(0, st.node.Read(ks, &rows.Query{Width: len(all), Rows: all}, []uint64{1}, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: time.Now().Add(must.BecomeMax)}))(t)
		return [3]int64{all[ks.Column("like")], all[ks.Column("repost")], all[ks.Column("comment")]}
	}
	if got, want := row(), [3]int64{150, 100, 50}; got != want {
		t.Errorf("row 1 is %d, want %d", got, want)
	}
	st.queue.set(func() {
		if len(st.queue.letters) != 1 || st.queue.letters[0] != repost(most) {
			t.Errorf("dead letters %q", st.queue.letters)
		}
	})

	// At the highest value of a count, a shard refuses only ops that add to that count.
	need(st.Pause(ctx, "likes"))(t)
	st.queue.add(0, repost("9223372036854775707"))
	for range 50 {
		st.queue.add(0, like(1), repost("1"))
	}
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("all is read", through(352))
	if got, want := row(), [3]int64{200, 1<<63 - 1, 50}; got != want {
		t.Errorf("row 1 is %d, want %d", got, want)
	}
	st.queue.set(func() {
		if len(st.queue.letters) != 51 {
			t.Errorf("%d dead letters", len(st.queue.letters))
		}
	})
}

// The number of rejected messages and the last reason survive a restart of the readers and of
// Sources. A rejected message counts once, and once more after a seek below it.
func TestRejectedIsKept(t *testing.T) {
	st, ctx := start(t, 2), t.Context()
	st.queue.add(0, like(1), "poison", like(1), "poison")
	st.queue.add(1, `{"keyspace":"posts","id":3,"add":{"like":9223372036854775807}}`, `{"keyspace":"posts","id":3,"add":{"like":1}}`)
	need(st.put(""))(t)
	is := func(rejected uint64, reason string) {
		t.Helper()
		of := need(st.Get(ctx, "likes"))(t)
		if of.Rejected != rejected || of.LastRejected == nil || !strings.Contains(of.LastRejected.Reason, reason) || of.DeadLetters != "LIKES.dead" {
			t.Fatalf("rejected %d, last %+v, dead letters %q", of.Rejected, of.LastRejected, of.DeadLetters)
		}
	}
	st.eventually("it is read", through(6))
	is(3, "")
	st.Sources.Close(ctx)
	st.stopped = nil
	again := New(st.cfg)
	again.every = st.every
	st.Sources = again
	again.Start()
	st.queue.add(0, like(1), "{}")
	st.eventually("it is read", through(8))
	is(4, "keyspace")
	need(st.Pause(ctx, "likes"))(t)
	is(4, "keyspace")
	need(st.Seek(ctx, "likes", map[uint32]string{0: "3"}))(t)
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("it is read again", through(8))
	is(6, "keyspace")
	need(st.put(`,"on-error":"skip"`))(t)
	st.queue.add(0, "poison")
	st.eventually("it is read", through(9))
	if of := need(st.Get(ctx, "likes"))(t); of.Rejected != 7 || of.DeadLetters != "" {
		t.Errorf("what is skipped: %+v", of)
	}
}

// A configuration with a missing name is refused, and the error lists the existing names.
func TestMissingNames(t *testing.T) {
	st, ctx := start(t, 1), t.Context()
	argument := func(field, want string, err error) {
		t.Helper()
		var of *errs.ArgumentError
		if !errors.As(err, &of) || of.Field != field || !strings.Contains(of.Problem, want) {
			t.Errorf("want %s: %s, it is %v", field, want, err)
		}
	}
	mapped := func(to string) error {
		_, err := st.put(`,"map":{` + to + `,"add":"1"}`)
		return err
	}
	argument("map.keyspace", `"post"; there are `, mapped(`"keyspace":"post","id":"$.id","column":"like"`))
	argument("map.keyspace", "neither of counters nor of unread", mapped(`"keyspace":"`+kinds.KeyspaceBoard+`","id":"$.id","column":"like"`))
	argument("map.column", `"likes"; keyspace posts has `, mapped(`"keyspace":"posts","id":"$.id","column":"likes"`))
	argument("map.column", `"likes"; keyspace unread has `, mapped(`"user":"$.id","column":"likes"`))
	st.queue.set(func() { st.queue.letterless = true })
	_, err := st.put("")
	argument("dead-letters", "nobody takes them", err)
	if all := need(st.List(ctx))(t); len(all) != 0 {
		t.Fatalf("made: %+v", all)
	}
	need(st.put(`,"on-error":"skip"`))(t)
	_, err = st.put("")
	argument("dead-letters", "nobody takes them", err)
	st.queue.set(func() { st.queue.letterless = false })
	need(st.put(likesBy(2)))(t)
	argument("map.column", "no such column", mapped(`"keyspace":"posts","id":"$.id","column":"likes"`))
	if err := mapped(`"keyspace":"$.keyspace","id":"$.id","column":"$.column"`); err != nil {
		t.Errorf("names of the messages: %v", err)
	}
}
