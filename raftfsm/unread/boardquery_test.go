package unread

import (
	"reflect"
	"testing"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
)

// The board is unchanged after AppendAnswer and ParseAnswer. ParseAnswer refuses a malformed
// answer.
func TestQueryAnswer(t *testing.T) {
	var q, got BoardQuery
	if err := q.Answer(NewBoard(), &raftfsm.Part{}, false, time.Time{}); err != nil {
		t.Fatal(err)
	}
	answer, err := q.AppendAnswer(nil, &raftfsm.Part{})
	r := wire.Reader{Rest: answer}
	if got.ParseAnswer(&r, &raftfsm.Part{}); err != nil || r.End() != nil || !reflect.DeepEqual(got.View, q.View) {
		t.Errorf("%+v became %+v, %v, %v", q.View, got.View, err, r.Err)
	}
	for _, bad := range []string{"", "{", "7", string(answer) + "x"} {
		r := wire.Reader{Rest: []byte(bad)}
		if got.ParseAnswer(&r, &raftfsm.Part{}); r.End() == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
