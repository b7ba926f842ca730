package kinds

import (
	"errors"
	"testing"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// Each kind numbers its queries from 0, and ParseQuery returns the query of the number. A shard
// refuses a query that its kind does not have.
func TestQueriesOfOtherKinds(t *testing.T) {
	part := func() *raftfsm.Part { return &raftfsm.Part{Keys: []uint64{1}} }
	for _, kind := range All {
		number := byte(0)
		for ; ; number++ {
			r := wire.Reader{Rest: make([]byte, 64)} // all fields are 0 except the limit, which queries of posts need
			r.Rest[9] = 1
			q := All.ParseQuery(kind.Number(), number, &r)
			if q == nil {
				break
			}
			if q.Number() != number {
				t.Errorf("%s: query %d is %T, number %d", kind.Number(), number, q, q.Number())
			}
			for _, other := range All {
				m := other.New(raftfsm.Places{})
				err := q.Answer(m, part(), true, time.Now().Add(time.Second))
				m.Close()
				if errors.Is(err, raftfsm.ErrOtherKind) && other == kind {
					t.Errorf("%T of %s: %v", q, kind.Number(), err)
				}
				noRows := other.Number() == codec.KindFeed || other.Number() == codec.KindBoard || other.Number() == codec.KindNames
				if noRows && other != kind && (!errors.Is(err, raftfsm.ErrOtherKind) || !errors.Is(err, wire.ErrBadMessage)) {
					t.Errorf("%T of %s in a shard of %s: %v", q, kind.Number(), other.Number(), err)
				}
			}
		}
		if number == 0 {
			t.Errorf("%s has no query", kind.Number())
		}
	}
}
