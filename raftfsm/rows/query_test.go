package rows

import (
	"errors"
	"reflect"
	"testing"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
)

// A query is unchanged after AppendTo and ParseQuery. ParseQuery refuses an unknown query.
func TestQueryMessages(t *testing.T) {
	for _, q := range []raftfsm.Query{&Query{Table: 1, Width: 4}, &Scan{Table: 1, Width: 4, chunk: 9}} {
		r := wire.Reader{Rest: q.AppendTo(nil, &raftfsm.Part{})}
		if got := ParseQuery(q.Number(), &r); r.End() != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v became %+v, %v", q, got, r.Err)
		}
	}
	var r wire.Reader
	if q := ParseQuery(2, &r); q != nil || !errors.Is(r.End(), wire.ErrBadMessage) {
		t.Errorf("%v, %v", q, r.Err)
	}
}

// ParseAnswer refuses an answer that does not fit the query.
func TestBadAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		q     raftfsm.Query
		words []int64
	}{
		"too many rows of a scan": {&Scan{chunk: 2, Width: 1}, []int64{3, 1, 1, 2, 1, 3, 1}},
		"short rows of a scan":    {&Scan{chunk: 2, Width: 1}, []int64{2, 1, 1, 2}},
		"too few rows":            {&Query{Width: 1}, []int64{1, 2}},
		"too many rows":           {&Query{Width: 1}, []int64{1, 2, 3, 4}},
	} {
		answer, _ := raftfsm.Defaults{}.AppendAnswer(nil, &raftfsm.Part{Words: c.words})
		r := wire.Reader{Rest: answer}
		if c.q.ParseAnswer(&r, &raftfsm.Part{Keys: make([]uint64, 3)}); r.End() == nil {
			t.Errorf("%s: %v was accepted", name, c.words)
		}
	}
}
