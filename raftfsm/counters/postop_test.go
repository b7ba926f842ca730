package counters

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/countd/countd/internal/wire"
)

func opsOfEachKind() []PostOp {
	dated := OutboxLimits{Posts: 10_000, Keep: 30 * 24 * 3600, Shift: 22, UnitMicros: 1_000_000, Epoch: 515_483_463, First: 3_330_000_000_000_000}
	return []PostOp{
		{Kind: Publish, ID: 4_467_107_636_950_632, Limits: dated},
		{Kind: Publish, ID: math.MaxUint64, Limits: OutboxLimits{Posts: OutboxPostsMax}},
		{Kind: Unpublish, ID: 7},
		{Kind: Unpublish, ID: 7, HasFloor: true, Floor: math.MinInt64},
		{Kind: PutOutbox, Outbox: Outbox{Trimmed: 3, IDs: []uint64{math.MaxUint64, 5, 4}}},
		{Kind: PutOutbox},
		{Kind: ClearOutboxes},
	}
}

// No bytes make the decoder of ops on outboxes panic. An op that it accepts can be applied, and can
// be encoded and decoded again.
func FuzzParsePostOp(f *testing.F) {
	for _, op := range opsOfEachKind() {
		f.Add(byte(op.Kind), op.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, kind byte, p []byte) {
		op := PostOp{Kind: PostOpKind(kind)}
		r := wire.Reader{Rest: p}
		if op.parse(&r); r.Err != nil {
			return
		}
		if err := op.check(); err != nil || !bytes.HasSuffix(p, r.Rest) {
			t.Fatalf("%+v was accepted: %v", op, err)
		}
		again := PostOp{Kind: op.Kind}
		r = wire.Reader{Rest: op.appendTo(nil)}
		if again.parse(&r); r.End() != nil || !equalOps(&op, &again) {
			t.Fatalf("%+v became %+v", op, again)
		}
		if op.Kind == ClearOutboxes {
			return
		}
		var c outboxChange
		const now = 1_790_000_000_000
		was := appendOutboxBody(nil, &Outbox{IDs: []uint64{9, 8, 7}, Trimmed: 2})
		if c.Apply(&op, 1, was, now) == outboxChanged {
			holdsInvariants(t, &op, c.Body)
		}
	})
}

func equalOps(a, b *PostOp) bool {
	return a.ID == b.ID && a.Limits == b.Limits && a.HasFloor == b.HasFloor && a.Floor == b.Floor &&
		a.Outbox.Trimmed == b.Outbox.Trimmed && slices.Equal(a.Outbox.IDs, b.Outbox.IDs)
}

// holdsInvariants checks the invariants of an outbox after a change.
func holdsInvariants(t *testing.T, op *PostOp, body []byte) {
	t.Helper()
	var o Outbox
	if decodeOutboxBody(&o, body); !o.valid() || op.Kind == Publish && len(o.IDs) > op.Limits.Posts {
		t.Fatalf("%+v made %+v", op, o)
	}
}

// No bytes make the decoder of outboxes panic. An outbox that it accepts is unchanged after it was
// encoded as a body and decoded again.
func FuzzParseOutbox(f *testing.F) {
	for _, op := range opsOfEachKind() {
		f.Add(appendOutbox(nil, &op.Outbox))
	}
	f.Add(appendOutbox(nil, &Outbox{IDs: []uint64{1 << 40, 1 << 20, 0}, Trimmed: math.MaxUint64}))
	f.Fuzz(func(t *testing.T, p []byte) {
		var o, decoded Outbox
		r := wire.Reader{Rest: p}
		if parseOutbox(&o, &r); r.Err != nil {
			return
		}
		if !o.valid() || !bytes.HasSuffix(p, r.Rest) {
			t.Fatalf("%+v was accepted", o)
		}
		if decodeOutboxBody(&decoded, appendOutboxBody(nil, &o)); !slices.Equal(decoded.IDs, o.IDs) || decoded.Trimmed != o.Trimmed {
			t.Fatalf("%+v became %+v", o, decoded)
		}
	})
}
