package rpc

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/errs"
)

// A call with JSON carries the request, the answer and the handler's error. A body that is not
// JSON of the handler's type never reaches the handler.
func TestJSONCalls(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	asker := nodes.node(t, "a", nil)
	type question struct{ N uint64 }
	double := func(_ context.Context, q question) (uint64, error) {
		if q.N == 0 {
			return 0, errs.ErrDiskFull
		}
		return 2 * q.N, nil
	}
	nodes.node(t, "b", map[string]Handler{
		"double":  JSON(double),
		"garbage": func(context.Context, []byte) ([]byte, error) { return []byte("{"), nil },
	})
	if got, err := CallJSON[uint64](t.Context(), asker, "b", "double", question{1<<62 + 1}); err != nil || got != 1<<63+2 {
		t.Errorf("answered %d, %v", got, err)
	}
	if _, err := CallJSON[uint64](t.Context(), asker, "b", "double", question{}); !errors.Is(err, errs.ErrDiskFull) {
		t.Errorf("the handler's error: %v", err)
	}
	if _, err := CallJSON[uint64](t.Context(), asker, "b", "garbage", None{}); !errors.Is(err, wire.ErrBadMessage) {
		t.Errorf("an answer that is not JSON: %v", err)
	}
	if _, err := asker.Call(t.Context(), "b", "double", []byte(`{"N":"3"}`)); CodeOf(err) != CodeOther {
		t.Errorf("a request that is not JSON: %v", err)
	}
	if _, err := CallJSON[uint64](t.Context(), asker, "b", "double", func() {}); !errors.Is(err, ErrNotSent) {
		t.Errorf("a request that cannot be encoded: %v", err)
	}
	names := map[string]bool{"a": true, "b": true, "unknown": true}
	want := map[string]uint64{"a": 6, "b": 6}
	if got := AskAllJSON(t.Context(), asker, "a", maps.Keys(names), "double", question{3}, double); !maps.Equal(got, want) {
		t.Errorf("all answered %v, want %v", got, want)
	}
}
