package counters

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

func soon() time.Time { return time.Now().Add(must.BecomeMax) }

// answerOf returns the encoding of an answer that consists of words.
func answerOf(words ...int64) []byte {
	answer, _ := raftfsm.Defaults{}.AppendAnswer(nil, &raftfsm.Part{Words: words})
	return answer
}

// Each query is unchanged after it was encoded and decoded.
func TestQueryMessages(t *testing.T) {
	page := members.Page{Limit: 5, Continues: true, After: members.Entry{At: 9, ID: 1 << 63}}
	for _, q := range []raftfsm.Query{
		&rows.Query{Width: 4},
		&PostsQuery{selected: selection{last: 9, below: 1}, Limit: 2},
		&ContainsQuery{Column: 1, Member: 7},
		&MembersQuery{Column: 3, Page: page},
		&RowsOfMemberQuery{Column: 3, Page: page, lists: []memberRows{{page: page}}},
	} {
		r := wire.Reader{Rest: q.AppendTo(nil, &raftfsm.Part{})}
		if got := (Kind{}).ParseQuery(q.Number(), &r); r.End() != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v became %+v, %v", q, got, r.Err)
		}
	}
}

// An invalid answer is refused.
func TestBadAnswers(t *testing.T) {
	list := &MembersQuery{Page: members.Page{Limit: 1}}
	for name, c := range map[string]struct {
		q      raftfsm.Query
		answer []byte
	}{
		"too many posts":   {&PostsQuery{Limit: 2}, answerOf(3, 1, 0, 1, 0, 1, 0)},
		"minus one post":   {&PostsQuery{Limit: 2}, answerOf(-1)},
		"another author":   {&PostsQuery{Limit: 2}, answerOf(1, 5, 3)},
		"author -1":        {&PostsQuery{Limit: 2}, answerOf(1, 5, -1)},
		"a short post":     {&PostsQuery{Limit: 2}, answerOf(2, 5, 1)},
		"few sets":         {&ContainsQuery{}, answerOf(1, 0)},
		"a long list":      {list, appendList(nil, &members.List{Entries: make([]members.Entry, 2)})},
		"a list of halves": {list, appendList(nil, &members.List{Entries: make([]members.Entry, 1)})[:5]},
	} {
		r := wire.Reader{Rest: c.answer}
		if c.q.ParseAnswer(&r, &raftfsm.Part{Keys: make([]uint64, 3)}); r.End() == nil {
			t.Errorf("%s: %x was accepted", name, c.answer)
		}
	}
}

// Answers with posts and lists are unchanged after they were encoded and decoded.
func TestAnswers(t *testing.T) {
	posts := &PostsQuery{Limit: 3}
	read := &raftfsm.Read{IDs: []uint64{7, 8, 9}, Parts: []raftfsm.Part{{Keys: []uint64{1, 2, 3}, At: []int{0, 1, 2}}}, Route: raftfsm.NewRoute(1, 1, false)}
	posts.Split(read)
	posts.ParseAnswer(&wire.Reader{Rest: answerOf(2, -1, 0, 5, 2)}, &read.Parts[0])
	if again := posts.Join(read); again || !slices.Equal(posts.Posts, []Post{{math.MaxUint64, 7}, {5, 9}}) {
		t.Errorf("posts %v, %v", posts.Posts, again)
	}
	list := &MembersQuery{Page: members.Page{Limit: 2}, List: members.List{Entries: []members.Entry{{ID: math.MaxUint64, At: 1<<48 - 1}, {ID: 3, At: 1}}, More: true}}
	answer, _ := list.AppendAnswer(nil, &raftfsm.Part{})
	r, got := wire.Reader{Rest: answer}, MembersQuery{Page: list.Page}
	if got.ParseAnswer(&r, &raftfsm.Part{}); r.End() != nil || !reflect.DeepEqual(got.List, list.List) || len(answer) > list.Limits(1).Answer {
		t.Errorf("%+v became %+v, %v", list.List, got.List, r.Err)
	}
}

// After Join, a query refers to none of the replicas that answered it, even if another shard could
// not be read. So callers can keep the query for other reads. If the read failed, Join does not
// read the outboxes of the replicas.
func TestPostsKeepNoReplica(t *testing.T) {
	c := New(raftfsm.Places{})
	defer c.Close()
	publish := PostOp{Kind: Publish, ID: 5, Limits: OutboxLimits{Posts: 10}}
	c.Apply(rafttest.Command(1, outboxEntry(1, outboxSection(&dedup.RequestID{}, nil, outboxAct{key: 3, op: publish}))))
	for _, failure := range []error{nil, errors.New("a bad token")} {
		postsKeepNoReplica(t, c, failure)
	}
}

func postsKeepNoReplica(t *testing.T, c *Machine, failure error) {
	t.Helper()
	q := &PostsQuery{Limit: 3}
	read := &raftfsm.Read{IDs: []uint64{7, 8}, Parts: []raftfsm.Part{{Route: codec.Whole, Keys: []uint64{3}, At: []int{0}}, {Shard: 1, Keys: []uint64{4}, At: []int{1}}}, Route: raftfsm.NewRoute(2, 2, false)}
	q.Split(read)
	if err := q.Answer(c, &read.Parts[0], false, soon()); err != nil || q.parts[0].counters != c {
		t.Fatalf("%v, %v", q.parts[0].counters, err)
	}
	read.Parts[1].Failed, read.Err = true, failure
	if again := q.Join(read); again || failure == nil && !slices.Equal(q.Unreadable, []int{1}) || (failure == nil) != (len(q.Posts) == 1) {
		t.Errorf("%v: again %v, unreadable %v, posts %v", failure, again, q.Unreadable, q.Posts)
	}
	for s, p := range q.parts {
		if p != (postsPart{}) {
			t.Errorf("the query keeps the replica of shard %d", s)
		}
	}
}

// A scan merges the rows of all shards in the order of their ids. If it has used up the rows of a
// shard, it reads more rows from that shard.
func TestScanReadsShardsAgain(t *testing.T) {
	const shards, ids, limit = 3, 400, 150
	machines := make([]*Machine, shards)
	for s := range machines {
		machines[s] = New(raftfsm.Places{})
		defer machines[s].Close()
	}
	var want []uint64
	for id := range uint64(ids) {
		s := id % shards
		if s != 0 && id >= 30 { // most rows are in the first shard
			continue
		}
		op := engine.Op{ID: id / shards, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}
		if _, err := machines[s].Table().Apply([]engine.Op{op}, 0, nil, nil); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	q := &rows.Scan{Width: 1, Limit: limit}
	read := &raftfsm.Read{Parts: make([]raftfsm.Part, shards), Route: raftfsm.NewRoute(shards, shards, false)}
	for s := range read.Parts {
		read.Parts[s].Shard = s
	}
	q.Split(read)
	rounds := 0
	for again := true; again; again = q.Join(read) {
		rounds++
		for s := range read.Parts {
			if len(read.Parts[s].Keys) == 0 {
				continue
			}
			if err := q.Answer(machines[s], &read.Parts[s], true, soon()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Equal(q.IDs, want[:limit]) || !q.More || rounds != 2 || len(q.Rows) != limit {
		t.Errorf("%d ids in %d rounds, more %v: %v, want %v", len(q.IDs), rounds, q.More, q.IDs, want[:limit])
	}
}

// A scan with limit 0 returns no rows, and sets More if there are rows.
func TestScanOfNoRows(t *testing.T) {
	c := newCounters(t)
	c.Apply(rafttest.Command(1, entryOf(0, []engine.Op{add(7, 0, 5)})))
	for _, oneShard := range []bool{false, true} {
		q := &rows.Scan{Width: 1, OneShard: oneShard}
		read := &raftfsm.Read{Parts: make([]raftfsm.Part, 1), Route: raftfsm.NewRoute(1, 1, false)}
		q.Split(read)
		if err := q.Answer(c, &read.Parts[0], true, soon()); err != nil {
			t.Fatal(err)
		}
		if again := q.Join(read); again || len(q.IDs) > 0 || len(q.Rows) > 0 || !q.More {
			t.Errorf("again %v, %+v", again, q)
		}
	}
}
