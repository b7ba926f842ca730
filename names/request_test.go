package names

import (
	"errors"
	"slices"
	"testing"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// settle settles texts one call after the other, and returns the number of calls.
func settle(n *Names, texts ...*Text) (calls int) {
	until := soon()
	n.Settle(texts, &shard.ReadOptions{Deadline: until}, &shard.Write{Deadline: until}, func(all int, run func(i int)) {
		for calls = range all {
			run(calls)
		}
		calls = all
	})
	return calls
}

// A request has each text once. Settle asks for all texts of one kind in one call, gives numbers only to
// those of writes, and asks again only for a text that is to be written since.
func TestRequest(t *testing.T) {
	node := newFakeNode()
	n := New(node)
	var r Request
	text := func(id string) *Text {
		t.Helper()
		number, late := r.Number(n, space, []byte(id))
		if late == nil || number != 0 {
			t.Fatalf("%s has the number %d", id, number)
		}
		return late
	}
	a, b, read := text("a"), text("b"), text("read")
	if text("a") != a {
		t.Error("a is there twice")
	}
	a.Use, b.Use, read.Use = Adds, Adds, Reads
	if calls := settle(n, a, read, b, a); calls != 2 || a.Number != 1 || b.Number != 2 || read.Number != 0 || !slices.Equal(node.writes, []int{2}) {
		t.Errorf("%d calls, numbers %d, %d and %d, writes %v", calls, a.Number, b.Number, read.Number, node.writes)
	}
	if number, late := r.Number(n, space, []byte("b")); late != nil || number != 2 {
		t.Errorf("b has the number %d, %v", number, late)
	}
	if calls := settle(n, a, read, b); calls != 0 {
		t.Errorf("%d calls for known texts", calls)
	}
	r.Final = true
	if number, late := r.Number(n, space, []byte("read")); late != nil || number != 0 {
		t.Errorf("a settled text has the number %d, %v", number, late)
	}
	r.Final, read.Use = false, Adds
	if calls := settle(n, read, text("read")); calls != 1 || read.Number != 3 {
		t.Errorf("%d calls, number %d", calls, read.Number)
	}
	node.lags = &apitest.NodeNames{}
	for use, want := range map[Use]uint64{Reads: 0, Removes: 2} {
		late := &Text{Space: space, Text: "b", Use: use}
		New(node).Settle([]*Text{late}, stale(soon()), &shard.Write{Deadline: soon()}, func(_ int, run func(i int)) { run(0) })
		if late.Number != want || late.Err != nil {
			t.Errorf("use %d, where the replica lags: number %d, %v", use, late.Number, late.Err)
		}
	}
	node.lags = nil
	r.Reset()
	lost := text("lost")
	node.writeErrs, lost.Use = []error{errs.ErrNoLeader}, Adds
	if settle(n, lost); !errors.Is(lost.Err, errs.ErrNoLeader) || lost.Number != 0 {
		t.Errorf("number %d, %v", lost.Number, lost.Err)
	}
}

func TestShown(t *testing.T) {
	n := New(newFakeNode())
	opt := &shard.ReadOptions{Deadline: soon()}
	numbers := make([]uint64, 2)
	if err := n.Assign(space, []string{"a", "b"}, numbers, &shard.Write{Deadline: opt.Deadline}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		space string
		want  string
	}{{"", "2,1,7,"}, {space, "b,a,,"}} {
		ids := IDs([]int{2, 1, 7}, func(i int) uint64 { return uint64(i) })
		shown, err := n.Show(test.space, ids, opt)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for i, id := range ids {
			got = append(shown.AppendTo(got, i, id), ',')
		}
		if string(got) != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	}
}
