package redis

import (
	"fmt"
	"slices"
	"testing"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// The ops of an EXEC must be applied together, also if they are tried again because memory was full.
// The other commands of the pipeline need not be.
func TestExecsAreWhole(t *testing.T) {
	n := newFakeNode()
	var sent []string
	full := 0 // the first writes of each pipeline meet full memory
	n.failWrites(func(w *shard.Write) error {
		var ids []uint64
		for i := range w.Ops.Len() {
			ids = append(ids, w.Ops.ID(i))
		}
		if sent = append(sent, fmt.Sprint(ids, w.Whole)); len(sent) <= full {
			return &shard.NewRowError{}
		}
		return nil
	})
	c := dial(t, serve(t, n, nil))
	ofOne := []string{"INCR posts:1:like", "MULTI", "INCR posts:1:like", "GET posts:5:like", "INCR posts:5:like", "EXEC"}
	crossing := []string{"MULTI", "INCR posts:1:like", "INCR posts:2:like", "EXEC"}
	last := []string{"INCR posts:5:like", "MULTI", "HINCRBY posts:3 like 2", "EXEC"}
	for _, pipeline := range []struct {
		lines []string
		full  int
		want  []string
	}{
		{[]string{"INCR posts:1:like", "INCR posts:5:like", "INCR posts:3:like"}, 0, []string{"[1 5 3] []"}},
		{slices.Concat(ofOne, crossing, last), 0, []string{"[1 1 5 5 5 3] [[1 4] [5 6]]"}},
		{slices.Concat(ofOne, last), 1, []string{"[1 1 5 5 5 3] [[1 4] [5 6]]", "[1 1 5 5 5 3] [[1 4] [5 6]]"}},
		{slices.Concat(ofOne, last), 2, []string{"[1 1 5 5 5 3] [[1 4] [5 6]]", "[1 1 5 5 5 3] [[1 4] [5 6]]", "[1 1 5 5] [[1 4]]", "[5 3] [[1 2]]"}},
	} {
		n.mu.Lock()
		sent, full = nil, pipeline.full
		n.mu.Unlock()
		c.do(pipeline.lines...)
		n.mu.Lock()
		sent := slices.Clone(sent)
		n.mu.Unlock()
		if !slices.Equal(sent, pipeline.want) {
			t.Errorf("%v: wrote %q, want %q", pipeline.lines, sent, pipeline.want)
		}
	}
}

// An EXEC whose ids are on several shards after a split is refused, or unknown, as a whole. The other
// commands of the pipeline are answered.
func TestExecThatASplitSeparates(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	for err, want := range map[error]string{
		errs.ErrCrossShard:     errCrossSlot,
		errs.ErrOutcomeUnknown: "UNKNOWN the write was proposed but its outcome is unknown",
	} {
		n.failWrites(func(w *shard.Write) error {
			partial := &shard.PartialError{Err: err, ByOp: make([]error, w.Ops.Len())}
			for _, whole := range w.Whole {
				for i := whole[0]; i < whole[1]; i++ {
					partial.ByOp[i] = err
				}
			}
			return partial
		})
		equalReplies(t, c.do("INCR posts:1:like", "MULTI", "INCR posts:1:like", "INCR posts:5:like", "EXEC", "INCR posts:5:like"),
			"0", "+OK", "+QUEUED", "+QUEUED", fmt.Sprintf("[-%s -%s]", want, want), "0")
	}
}
