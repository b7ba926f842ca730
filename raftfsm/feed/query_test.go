package feed

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/spill"
)

// An answer with groups is the same after its transfer between nodes.
func TestGroupsAnswer(t *testing.T) {
	largest := Group{Name: strings.Repeat("x", GroupNameBytesMax), Followees: slices.Repeat([]uint64{math.MaxUint64}, FolloweesMax)}
	for _, groups := range [][]Group{
		{}, {{Name: "eight888", Followees: []uint64{1, math.MaxUint64}}, {Name: "x", Followees: []uint64{}}}, slices.Repeat([]Group{largest}, GroupsMax),
	} {
		q := &GroupsQuery{Groups: groups}
		answer, err := q.AppendAnswer(nil, &raftfsm.Part{})
		r, got := wire.Reader{Rest: answer}, GroupsQuery{}
		got.ParseAnswer(&r, &raftfsm.Part{})
		if err := errors.Join(err, r.End()); err != nil || !reflect.DeepEqual(got.Groups, groups) || len(answer) > q.Limits(1).Answer {
			t.Errorf("%d groups became %d in %d bytes, %v", len(groups), len(got.Groups), len(answer), err)
		}
	}
}

// A read from local memory and a read over the network return the same feeds, each for the right
// user.
func TestFeedsAnswer(t *testing.T) {
	m := New(spill.Place{})
	defer m.Close()
	m.Apply(feedEntry(1,
		Op{Kind: Follow, User: 7, Followees: []Followee{{ID: 1, Posts: 5}, {ID: 2}}},
		Op{Kind: Follow, User: 9, Followees: []Followee{{ID: 1 << 63, Posts: -4}}},
	))
	read := &raftfsm.Read{IDs: []uint64{7, 8, 9}, Parts: []raftfsm.Part{{Keys: []uint64{9, 7, 8}, At: []int{2, 0, 1}}}}
	for _, remote := range []bool{false, true} {
		var q Query
		q.Split(read)
		p := &read.Parts[0]
		if remote {
			served := &raftfsm.Part{Keys: p.Keys}
			if err := (&Query{}).Answer(m, served, false, time.Time{}); err != nil {
				t.Fatal(err)
			}
			answer, _ := q.AppendAnswer(nil, served)
			r := wire.Reader{Rest: answer}
			if q.ParseAnswer(&r, p); r.End() != nil {
				t.Fatal(r.Err)
			}
		} else if err := q.Answer(m, p, false, time.Time{}); err != nil {
			t.Fatal(err)
		}
		q.Join(read)
		for i, user := range read.IDs {
			followees, _ := q.Of(i)
			if want, _, _ := m.Followees(nil, user); !slices.Equal(followees, want) || (user == 8) != (len(followees) == 0) {
				t.Errorf("user %d follows %v, want %v", user, followees, want)
			}
		}
	}
}

// A malformed feed is refused.
func TestBadFeeds(t *testing.T) {
	for name, words := range map[string][]int64{"too many": {FolloweesMax + 1, 0}, "short": {1, 0, 5}, "minus one": {-1, 0}} {
		answer, _ := raftfsm.Defaults{}.AppendAnswer(nil, &raftfsm.Part{Words: words})
		r := wire.Reader{Rest: answer}
		if (&Query{}).ParseAnswer(&r, &raftfsm.Part{Keys: make([]uint64, 1)}); r.End() == nil {
			t.Errorf("%s: %v was accepted", name, words)
		}
	}
}
