package feed

import (
	"bytes"
	"math"
	"testing"

	"github.com/countd/countd/internal/wire"
)

// No bytes crash the decoder of groups. If it accepts bytes, encoding the groups yields the same
// bytes.
func FuzzParseGroups(f *testing.F) {
	followees := []Followee{{ID: 1}, {ID: 7, Posts: 3}, {ID: math.MaxUint64}}
	for _, groups := range [][]Group{
		{{Name: "stars", Followees: []uint64{1, math.MaxUint64}}},
		{{Name: "a"}, {Name: "b", Followees: []uint64{7}}},
	} {
		f.Add(appendGroups(nil, groups, followees))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		r := wire.Reader{Rest: p}
		groups := readGroups(&r, followees)
		if r.Err != nil || len(groups) == 0 {
			return
		}
		one := wire.Reader{Rest: appendGroups(nil, groups, followees)}
		again := readGroups(&one, followees)
		if !bytes.HasSuffix(p, r.Rest) || one.End() != nil || !sameGroups(again, groups) {
			t.Fatalf("%v became %v", groups, again)
		}
	})
}

// No bytes crash the decoder of ops on feeds and groups. If it accepts bytes, encoding the op
// yields the same bytes.
func FuzzFeedOp(f *testing.F) {
	for _, op := range []Op{
		{Kind: PutGroup, Followees: []Followee{{ID: 1}, {ID: 9}}, Group: "stars"},
		{Kind: DropGroup, Group: "stars"},
		{Kind: Follow, Followees: []Followee{{ID: 5, Posts: -1}, {ID: math.MaxUint64, Posts: math.MaxInt64}}},
		{Kind: Clear},
	} {
		f.Add(op.appendTo(nil, 3))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var b, again batch
		rest, err := b.op(p)
		if err != nil {
			return
		}
		b.link()
		op := &b.ops[0]
		if err := op.check(); err != nil || !bytes.HasSuffix(p, rest) {
			t.Fatalf("%+v was accepted: %v", op, err)
		}
		form := op.appendTo(nil, op.User)
		if rest, err := again.op(form); err != nil || len(rest) > 0 {
			t.Fatalf("%+v is not accepted again: %v", op, err)
		}
		again.link()
		if !bytes.Equal(again.ops[0].appendTo(nil, op.User), form) {
			t.Fatalf("%+v became %+v", op, again.ops[0])
		}
	})
}
