package outbox

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/countd/countd/internal/wire"
)

func opsOfEachKind() []Op {
	dated := Limits{Posts: 10_000, Keep: 30 * 24 * 3600, Shift: 22, UnitMicros: 1_000_000, Epoch: 515_483_463, First: 3_330_000_000_000_000}
	return []Op{
		{Kind: Publish, ID: 4_467_107_636_950_632, Limits: dated},
		{Kind: Publish, ID: math.MaxUint64, Limits: Limits{Posts: PostsMax}},
		{Kind: Remove, ID: 7},
		{Kind: Remove, ID: 7, HasFloor: true, Floor: math.MinInt64},
		{Kind: Put, Outbox: Outbox{Trimmed: 3, IDs: []uint64{math.MaxUint64, 5, 4}}},
		{Kind: Put},
		{Kind: Clear},
	}
}

// No bytes of an entry crash the decoder. What it accepts can be applied, and has only one form.
func FuzzParseOp(f *testing.F) {
	for _, op := range opsOfEachKind() {
		f.Add(byte(op.Kind), op.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, kind byte, p []byte) {
		op := Op{Kind: Kind(kind)}
		r := wire.Reader{Rest: p}
		if op.Parse(&r); r.Err != nil {
			return
		}
		if err := op.Check(); err != nil || !bytes.HasSuffix(p, r.Rest) {
			t.Fatalf("%+v was accepted: %v", op, err)
		}
		again := Op{Kind: op.Kind}
		r = wire.Reader{Rest: op.AppendTo(nil)}
		if again.Parse(&r); r.End() != nil || !equalOps(&op, &again) {
			t.Fatalf("%+v became %+v", op, again)
		}
		if op.Kind == Clear {
			return
		}
		var c Change
		const now = 1_790_000_000_000
		was := AppendBody(nil, &Outbox{IDs: []uint64{9, 8, 7}, Trimmed: 2})
		if c.Apply(&op, 1, was, now) == Changed {
			holdsInvariants(t, &op, c.Body)
		}
	})
}

func equalOps(a, b *Op) bool {
	return a.ID == b.ID && a.Limits == b.Limits && a.HasFloor == b.HasFloor && a.Floor == b.Floor &&
		a.Outbox.Trimmed == b.Outbox.Trimmed && slices.Equal(a.Outbox.IDs, b.Outbox.IDs)
}

// holdsInvariants checks an outbox after a change.
func holdsInvariants(t *testing.T, op *Op, body []byte) {
	t.Helper()
	var o Outbox
	if DecodeBody(&o, body); !o.valid() || op.Kind == Publish && len(o.IDs) > op.Limits.Posts {
		t.Fatalf("%+v made %+v", op, o)
	}
}

// No bytes of a snapshot crash the decoder of outboxes. What it accepts has only one form in
// memory, too.
func FuzzParseOutbox(f *testing.F) {
	for _, op := range opsOfEachKind() {
		f.Add(AppendOutbox(nil, &op.Outbox))
	}
	f.Add(AppendOutbox(nil, &Outbox{IDs: []uint64{1 << 40, 1 << 20, 0}, Trimmed: math.MaxUint64}))
	f.Fuzz(func(t *testing.T, p []byte) {
		var o, decoded Outbox
		r := wire.Reader{Rest: p}
		if ParseOutbox(&o, &r); r.Err != nil {
			return
		}
		if !o.valid() || !bytes.HasSuffix(p, r.Rest) {
			t.Fatalf("%+v was accepted", o)
		}
		if DecodeBody(&decoded, AppendBody(nil, &o)); !slices.Equal(decoded.IDs, o.IDs) || decoded.Trimmed != o.Trimmed {
			t.Fatalf("%+v became %+v", o, decoded)
		}
	})
}
