package shard

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
)

// streamCalls counts the calls that arrive on streams.
type streamCalls struct {
	*rpc.Calls
	answered atomic.Int64
}

func (c *streamCalls) Answer(ctx context.Context, method string, request []byte) ([]byte, error) {
	c.answered.Add(1)
	return c.Calls.Answer(ctx, method, request)
}

// A small question of a linearizable read travels on the stream to the other node. A large read, or
// a read whose answer may be large, travels as a gRPC call, so that it never delays appends.
func TestQuestionsTravelOnStreams(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	n := &Node{}
	n.cfg.NodeKey = "a"
	n.calls, n.mux = nodes.Node(t, "a", nil, nil)
	n.streams = stream.New(stream.Config{Mux: n.mux, Lookup: nodes.Lookup, Calls: n.calls})
	n.reader.streams = n.streams
	t.Cleanup(n.streams.Close)
	p := leadership.NewProver(leadership.ProverConfig{Key: "a", Call: n.streams.Call, Asking: &n.asking.WaitGroup})
	answers := func(answer []byte) rpc.Handler {
		return func(context.Context, []byte) ([]byte, error) { return answer, nil }
	}
	other := &streamCalls{}
	calls, mux := nodes.Node(t, "b", map[string]rpc.Handler{
		"confirm": answers(binary.AppendUvarint(rpc.AppendError(nil, nil), 9)),
		methodRead: func(_ context.Context, request []byte) ([]byte, error) {
			r := wire.Reader{Rest: request}
			r.Uint()
			read := parseRead(&r)
			return wire.AppendBytes(rpc.AppendError(nil, nil), make([]byte, len(read.keys))), nil
		},
	}, nil)
	other.Calls = calls
	streams := stream.New(stream.Config{Mux: mux, Lookup: nodes.Lookup, Calls: other})
	t.Cleanup(streams.Close)
	read := func(q raftfsm.Query, keys int) func() error {
		return func() error {
			read := &remoteRead{route: codec.Whole, consistency: Linearizable, number: q.Number(), keys: make([]uint64, keys)}
			sent := &sentRead{message: read.appendTo(nil), answerMax: q.Limits(keys).Answer}
			answers, err := n.reader.sendReads("b")(testContext(t), []*sentRead{sent})
			if err == nil {
				err = answers[0].err
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		ask   func() error
		small bool
	}{
		"confirm": {small: true, ask: func() error {
			index, err := p.Confirm(testContext(t), "b", 1)
			if err == nil && index != 9 {
				t.Errorf("index %d", index)
			}
			return err
		}},
		"read":               {small: true, ask: read(&rows.Query{Width: 1}, 1)},
		"read of many":       {ask: read(&rows.Query{Width: 1}, raftfsm.ReadKeysMax)},
		"read of many feeds": {ask: read(&feed.Query{}, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			eventually(t, "the stream is there", func() bool {
				before := other.answered.Load()
				_, err := n.streams.Call(testContext(t), "b", "echo", nil, 0)
				return err == nil && other.answered.Load() > before
			})
			before := other.answered.Load()
			mustDo(t, c.ask())
			if streamed := other.answered.Load() > before; streamed != c.small {
				t.Errorf("it travelled on the stream: %v, want %v", streamed, c.small)
			}
		})
	}
}
