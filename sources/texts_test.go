package sources

import (
	"context"
	"strings"
	"testing"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// decoded returns the ops of a message.
func decoded(t *testing.T, config, message string) []sink.Op {
	t.Helper()
	c, err := source.ParseConfig([]byte(`{"name":"a","type":"redis-stream","addr":"b","key":"k"` + config + `}`))
	if err != nil {
		t.Fatal(err)
	}
	d := source.NewDecoder(c)
	if err := d.Decode(&source.Message{Value: []byte(message)}); err != nil {
		t.Fatal(err)
	}
	return d.Ops
}

// A text is refused where ids are numbers, and a bad text where they are texts. The reason names the
// field of the message.
func TestWhyIDsAreRejected(t *testing.T) {
	t.Parallel()
	const mapped = `,"map":{"keyspace":"posts","id":"$.post","column":"like","member":"$.by","set":true}`
	const number = `not an unsigned 64-bit integer; a keyspace made with "ids":"text" takes any text`
	const text = "not a text of 1 to 128 bytes of UTF-8"
	columns := []string{"like"}
	long := strings.Repeat("x", 129)
	for _, test := range []struct {
		config, message string
		posts, users    string // Names
		want            string
	}{
		{"", `{"keyspace":"posts","id":"a","add":{"like":1}}`, "", "", "id: " + number},
		{"", `{"keyspace":"posts","id":"a","add":{"like":1}}`, "p", "", ""},
		{"", `{"keyspace":"posts","id":"7","add":{"like":1}}`, "", "", ""},
		{"", `{"keyspace":"posts","id":7,"add":{"like":1}}`, "p", "", ""},
		{"", `[{"keyspace":"posts","id":"` + long + `","add":{"like":1}}]`, "p", "", "[0].id: " + text},
		{"", `{"user":"ann","add":{"like":1}}`, "p", "", "user: " + number},
		{"", `{"user":"ann","add":{"like":1}}`, "", "u", ""},
		{"", `[{"keyspace":"posts","column":"like","id":1,"member":"ann","set":true}]`, "p", "", "[0].member: " + number},
		{"", `{"keyspace":"posts","column":"like","id":"a","member":"ann","set":true}`, "p", "u", ""},
		{"", `{"keyspace":"posts","column":"like","id":"a","member":"ann","set":true}`, "", "u", "id: " + number},
		{mapped, `{"post":"a","by":"ann"}`, "p", "", "$.by: " + number},
		{mapped, `{"post":"5.00","by":"7.0"}`, "", "", ""},
		{mapped, `{"post":"5.00","by":"` + long + `"}`, "p", "u", "$.by: " + text},
	} {
		spaces := []*shard.Keyspace{
			{Name: "posts", Kind: kinds.Counters, Columns: columns, Names: test.posts},
			{Name: "users", Kind: kinds.Counters, Columns: columns, Names: test.users},
			{Name: "unread", Kind: kinds.Unread, Columns: columns, Names: test.users},
		}
		rejected := rejectedOps(spaces, decoded(t, test.config, test.message))
		got := ""
		if len(rejected) > 0 {
			got = rejected[0].Reason
		}
		if got != test.want {
			t.Errorf("%s with names %q and %q: %q, want %q", test.message, test.posts, test.users, got, test.want)
		}
	}
}

// Ops of one text have one number. A number in another spelling is another text. A repeat gives the
// same numbers, and a text without a number gets none unless it is to be assigned.
func TestNumbersOfTexts(t *testing.T) {
	t.Parallel()
	const mapped = `,"map":{"keyspace":"posts","id":"$.post","column":"like","member":"$.by","set":true}`
	c := newSourceCluster(t)
	c.names = &apitest.NodeNames{}
	c.create(kinds.KeyspaceUsers, kinds.Counters, 1)
	n := c.node()
	texts := textIDsOf(n.Keyspaces())
	var ops []*sink.Op
	for _, message := range []string{`{"post":"a","by":"ann"}`, `{"post":7,"by":"7"}`, `{"post":"a","by":7}`, `{"post":"7.0","by":"a"}`, `{"post":"7","by":"ann"}`} {
		of := decoded(t, mapped, message)
		ops = append(ops, &of[0])
	}
	for _, assign := range []bool{false, true, false} {
		if err := n.sink.number(context.Background(), texts, ops, assign); err != nil {
			t.Fatal(err)
		}
		id, member := func(i int) uint64 { return ops[i].ID }, func(i int) int64 { return ops[i].Cells[0].Value }
		if !assign && c.names.Assigned() == 0 {
			if id(0)+id(1)+id(2)+id(3) != 0 {
				t.Errorf("unknown texts have numbers: %v", ops)
			}
			continue
		}
		if id(0) != 1 || id(1) != 2 || id(2) != 1 || id(3) != 3 || id(4) != 2 || member(0) != 1 || member(1) != 2 || member(2) != 2 || member(3) != 3 || member(4) != 1 {
			t.Errorf("the numbers are %d %d, %d %d, %d %d, %d %d, %d %d", id(0), member(0), id(1), member(1), id(2), member(2), id(3), member(3), id(4), member(4))
		}
	}
	if got := texts.idOf(ops[3]); got != "7.0" {
		t.Errorf("it is shown as %s", got)
	}
	if got := c.names.Assigned(); got != 6 {
		t.Errorf("%d numbers were given", got)
	}
}

// No shard has passed an op whose text has no number: it counted nowhere, whatever the shard of number 0
// has passed.
func TestPassedTexts(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.names = &apitest.NodeNames{}
	n := c.node()
	ctx, spaces := context.Background(), n.Keyspaces()
	text := func(id string) sink.Op {
		return sink.Op{Position: sink.Position{Lo: 3}, Keyspace: "posts", Texts: &sink.Texts{ID: id, IDAt: "id"}}
	}
	known := text("known")
	if err := n.sink.number(ctx, textIDsOf(spaces), []*sink.Op{&known}, true); err != nil {
		t.Fatal(err)
	}
	l := n.sink.layoutOf(spaces)
	r := &sinkReader{shards: map[uint32]*progress{}, routes: l.byFirst()}
	for _, to := range l.shards {
		r.shards[to.group] = &progress{known: true, position: sink.Position{Lo: 9}}
	}
	ops, rejected := []sink.Op{text("known"), text("new"), text("\xff")}, []sink.Rejection{{Op: 0}, {Op: 1}, {Op: 2}}
	if err := n.sink.numberRejected(ctx, textIDsOf(spaces), ops, rejected); err != nil {
		t.Fatal(err)
	}
	if err := r.markPassed(l, ops, rejected); err != nil {
		t.Fatal(err)
	}
	if !rejected[0].Passed || rejected[1].Passed || rejected[2].Passed || c.names.Assigned() != 1 {
		t.Errorf("%+v, and %d numbers were given", rejected, c.names.Assigned())
	}
}
