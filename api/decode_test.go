package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

func postsKeyspace() *shard.Keyspace {
	return &shard.Keyspace{Name: "posts", Kind: kinds.Counters, Columns: []string{"repost", "comment", "like", "view"}, Shards: 4}
}

// hundredOps returns a body of 100 increments of one to three columns.
func hundredOps() []byte {
	var b bytes.Buffer
	b.WriteString(`{"ops":[`)
	for i := range 100 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":"%d","add":{"like":1`, 4467107636950632+i*7919)
		if i%3 == 0 {
			fmt.Fprintf(&b, `,"repost":-%d,"view":%d`, i, i*1000)
		}
		b.WriteString("}}")
	}
	b.WriteString("]}")
	return b.Bytes()
}

// fullWrite returns the answer to hundredOps.
func fullWrite(ks *shard.Keyspace) *shard.Write {
	var ops counters.Ops
	w := &shard.Write{Width: len(ks.Columns), Token: shard.Token{Cluster: 7, At: []shard.GroupIndex{{Group: 1, Index: 1000}, {Group: 2, Index: 2000}}}}
	for i := range 100 {
		ops = append(ops, engine.Op{ID: uint64(4467107636950632 + i*7919), Kind: engine.OpAdd})
		w.Rows = append(w.Rows, 12, 3, int64(i)*17, 123456)
	}
	w.Ops = ops
	return w
}

func TestDecodeAndEncodeDoNotAllocate(t *testing.T) {
	ks, body := postsKeyspace(), hundredOps()
	r := &request{}
	decode := func() {
		r.reset()
		r.keyspace = ks
		r.caughtUp = true
		if err := r.decodeOps(body, changeAdd); err != nil {
			t.Fatal(err)
		}
	}
	get := []byte(`{"ids":["1",2,"18446744073709551615"],"columns":["view","\u006cike"]}`)
	decodeGet := func() {
		r.reset()
		r.keyspace = ks
		r.caughtUp = true
		if err := r.decodeGet(get); err != nil {
			t.Fatal(err)
		}
	}
	w, out := fullWrite(ks), []byte(nil)
	columns := []uint8{0, 1, 2, 3}
	ids := make([]uint64, 20)
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"decode 100 ops", decode},
		{"decode ids", decodeGet},
		{"encode 100 results", func() { out = appendResults(out[:0], w, w.Ops.(counters.Ops), new(names.Slots), ks) }},
		{"encode a page of 20", func() { out = appendRows(out[:0], &listed{ids: ids}, ks, columns, w.Rows, nil) }},
	} {
		if n := testing.AllocsPerRun(100, c.run); n != 0 {
			t.Errorf("%s: %v allocations, want 0", c.name, n)
		}
	}
}

// TestPoolDropsHugeRequests checks that the pool does not keep the memory of a huge request.
func TestPoolDropsHugeRequests(t *testing.T) {
	var p requestPool
	r := p.acquire()
	r.cells = make([]engine.Cell, 0, pooledCellsMax+1)
	p.release(r)
	if r.cells == nil || len(r.ops) != 0 {
		t.Fatal("the request was touched")
	}
	if again := p.acquire(); again == r {
		t.Error("a huge request came back from the pool")
	}
}

func BenchmarkDecodeOps100(b *testing.B) {
	ks, body, r := postsKeyspace(), hundredOps(), &request{}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r.reset()
		r.keyspace = ks
		r.caughtUp = true
		if err := r.decodeOps(body, changeAdd); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeResults100(b *testing.B) {
	ks, out := postsKeyspace(), []byte(nil)
	w := fullWrite(ks)
	b.ReportAllocs()
	for b.Loop() {
		out = appendResults(out[:0], w, w.Ops.(counters.Ops), new(names.Slots), ks)
	}
}

func BenchmarkDecodeIDs20(b *testing.B) {
	ks, r := postsKeyspace(), &request{}
	body := []byte(`{"ids":["4467107636950632"` + strings.Repeat(`,"4467107636950632"`, 19) + `]}`)
	b.ReportAllocs()
	for b.Loop() {
		r.reset()
		r.keyspace = ks
		r.caughtUp = true
		if err := r.decodeGet(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodePage20(b *testing.B) {
	ks, out := postsKeyspace(), []byte(nil)
	w := fullWrite(ks)
	ids := make([]uint64, 20)
	for i := range ids {
		ids[i] = apitest.RowOps(w.Ops)[i].ID
	}
	b.ReportAllocs()
	for b.Loop() {
		out = appendRows(out[:0], &listed{ids: ids}, ks, []uint8{0, 1, 2, 3}, w.Rows, nil)
	}
}

// errOracle is the error of oracleOps for a body that it refuses.
var errOracle = errors.New("refused")

// object is a JSON object with its members in order; encoding/json would drop repeated members.
type object []member

type member struct {
	key   string
	value any
}

// oracleValue reads one JSON value from the tokens of encoding/json.
func oracleValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil || depth > 20 {
		return nil, errOracle
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := oracleValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		o := object{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := oracleValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			o = append(o, member{key.(string), v})
		}
		_, err = d.Token()
		return o, err
	}
	return token, nil
}

// members returns the members of an object. It refuses an object with repeated keys, or with keys
// other than the given ones.
func (o object) members(keys ...string) (map[string]any, error) {
	m := map[string]any{}
	for _, member := range o {
		if _, double := m[member.key]; double || !slices.Contains(keys, member.key) {
			return nil, errOracle
		}
		m[member.key] = member.value
	}
	return m, nil
}

// oracleID reads an id by the rules of the contract.
func oracleID(v any) (uint64, error) {
	text, ok := v.(string)
	if n, isNumber := v.(json.Number); isNumber {
		text, ok = n.String(), true
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if !ok || err != nil || strconv.FormatUint(id, 10) != text {
		return 0, errOracle
	}
	return id, nil
}

// oracleOps returns what decodeOps must return for changeAdd. It is simple, and uses encoding/json.
func oracleOps(body []byte, ks *shard.Keyspace) (ops []engine.Op, wantNone bool, err error) {
	if !json.Valid(body) {
		return nil, false, errOracle
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	v, err := oracleValue(d, 0)
	if err != nil {
		return nil, false, errOracle
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, false, errOracle
	}
	o, ok := v.(object)
	if !ok {
		return nil, false, errOracle
	}
	m, err := o.members("ops", "want")
	if err != nil {
		return nil, false, err
	}
	want, wantNone := m["want"]
	list, ok := m["ops"].([]any)
	if wantNone && want != "none" || !ok || len(list) == 0 || len(list) > opsMax {
		return nil, false, errOracle
	}
	for _, v := range list {
		op, err := oracleOp(v, ks)
		if err != nil {
			return nil, false, err
		}
		ops = append(ops, op)
	}
	return ops, wantNone, nil
}

func oracleOp(v any, ks *shard.Keyspace) (engine.Op, error) {
	o, ok := v.(object)
	if !ok {
		return engine.Op{}, errOracle
	}
	m, err := o.members("id", "add", "floor")
	if err != nil {
		return engine.Op{}, err
	}
	op := engine.Op{Kind: engine.OpAdd}
	if op.ID, err = oracleID(m["id"]); err != nil {
		return op, err
	}
	told, hasFloor := m["floor"]
	floor := int64(0)
	if hasFloor {
		n, ok := told.(json.Number)
		if floor, err = strconv.ParseInt(string(n), 10, 64); !ok || err != nil {
			return op, errOracle
		}
	}
	add, ok := m["add"].(object)
	if !ok || len(add) == 0 {
		return op, errOracle
	}
	if _, err := add.members(ks.Columns...); err != nil {
		return op, err
	}
	for _, cell := range add {
		n, ok := cell.value.(json.Number)
		value, err := strconv.ParseInt(string(n), 10, 64)
		if !ok || err != nil {
			return op, errOracle
		}
		column := uint8(ks.Column(cell.key))
		if hasFloor && value < 0 {
			op.Cells = append(op.Cells, engine.Cell{Column: engine.FloorMark | column, Value: floor})
		}
		op.Cells = append(op.Cells, engine.Cell{Column: column, Value: value})
	}
	return op, nil
}

// FuzzDecodeOps checks that the decoder accepts exactly the bodies that encoding/json and the
// contract accept, with the same result.
func FuzzDecodeOps(f *testing.F) {
	for _, seed := range []string{
		`{"ops":[{"id":"1","add":{"like":1,"repost":-1}},{"add":{"view":-0},"id":18446744073709551615}],"want":"none"}`,
		`{"ops":[{"id":"\u0031","add":{"l\u0069ke":-9223372036854775808}}]}`,
		`{"ops":[{"id":1,"add":{"like":9223372036854775808}}]}`,
		`{"ops":[{"id":01,"add":{"like":1e3}}]}`,
		`{"ops":[{"id":1,"id":1,"add":{}}]}`,
		"{\"ops\":[{\"id\":\"\xff\",\"add\":{\"\\ud800\":1}}]} x",
		"\t{ \"ops\" :\r\n[ { \"id\" : 1 , \"add\" : { \"like\" : 1 } } ] } ",
		`{"ops":[{"id":"\uD83D\uDE00","add":{"\/\b\f\n\r\t\"\\":1}}]}`,
		`{"ops":[{"id":1,"floor":-9223372036854775808,"add":{"like":-1,"view":2,"repost":-3}},{"id":2,"add":{"like":0},"floor":5}]}`,
		`{"ops":[{"id":1,"floor":0,"floor":0,"add":{"like":-1}}]}`, `{"ops":[{"id":1,"floor":null,"add":{"like":-1}}]}`,
		`[[[[`, `{"a":`, `{"ops":[,]}`, `{"ops":[{"id":1,}]}`, `nul`, `"`, `"\`, `"\u12`,
	} {
		f.Add([]byte(seed))
	}
	ks, r := postsKeyspace(), &request{backend: newFakeNode()}
	f.Fuzz(func(t *testing.T, body []byte) {
		r.reset()
		r.keyspace = ks
		r.caughtUp = true
		err := r.decodeOps(slices.Clone(body), changeAdd)
		ops, wantNone, oracleErr := oracleOps(body, ks)
		if (err == nil) != (oracleErr == nil) {
			t.Fatalf("%q: decoder says %v, oracle says %v", body, err, oracleErr)
		}
		if err != nil {
			wantTellable(t, err)
			return
		}
		if wantNone != r.wantNone || !reflect.DeepEqual(ops, []engine.Op(r.ops)) {
			t.Fatalf("%q: decoder read %v, oracle read %v", body, r.ops, ops)
		}
	})
}

// wantTellable checks that the answer of a fault is JSON.
func wantTellable(t *testing.T, err error) {
	t.Helper()
	f, foreseen := faultOf(err)
	if !foreseen || f.status != 400 || !json.Valid(f.appendJSON(nil)) {
		t.Fatalf("fault %v is answered %d %s", err, f.status, f.appendJSON(nil))
	}
}

// manyMembers is a body with members of all types.
type manyMembers struct {
	Name      string                  `json:"name"`
	Columns   []column.Column         `json:"columns"`
	Shards    *int                    `json:"shards"`
	ID        client.ID               `json:"id"`
	On        bool                    `json:"on"`
	Keyspace  string                  `json:"keyspace"`
	Seconds   *int64                  `json:"older_than_seconds"`
	Grants    []clientadmin.Grant     `json:"grants"`
	Was       *clientadmin.UserRights `json:"was"`
	Positions map[uint32]int64        `json:"positions"`
}

func FuzzDecodeLists(f *testing.F) {
	f.Add([]byte(`{"ids":["1",2],"columns":["like"]}`))
	f.Add([]byte(`{"after":"7","limit":10,"columns":["view","like"]}`))
	f.Add([]byte(`{"name":"clips","columns":["play"],"shards":4}`))
	f.Add([]byte(`{"columns":["a","b"]}`))
	f.Add([]byte(`{"columns":[{"name":"a","floor":-1},"b",{"floor":null,"name":"c"}],"name":"k"}`))
	f.Add([]byte(`{"set":{"like":1}}`))
	f.Add([]byte(`{"ops":[{"keyspace":"posts","id":"1","add":{"like":-1},"floor":0},{"add":{"like":1},"user":9},{"set":{"posts":1},"id":2,"keyspace":"users"}],"want":"none"}`))
	f.Add([]byte(`{"ops":[{"add":{"like":{}},"user":9},{"user":1,"keyspace":"posts","add":{}},{"keyspace":"feed"}]}`))
	f.Add([]byte(`{"ops":[{"keyspace":"posts","column":"like","id":"1","member":"7","set":true},{"set":false,"member":7,"column":"l\u0069ke","keyspace":"posts","id":2}]}`))
	f.Add([]byte(`{"ops":[{"id":"1","member":"7","set":true},{"set":false,"member":7,"id":2}],"want":"none"}`))
	f.Add([]byte(`{"member":"7","ids":["1",2]}`))
	node := newFakeNode()
	f.Add([]byte(`{"keyspace":"posts","id":"9","older_than_seconds":60,"on":true,"positions":{"0":700,"1":"1-2"}}`))
	f.Add([]byte(`{"grants":[{"role":"reader","keyspaces":["*"]}],"was":{"grants":[]}}`))
	ks, r := postsKeyspace(), &request{}
	f.Fuzz(func(t *testing.T, body []byte) {
		decoders := map[string]func() error{
			"get":     func() error { return r.decodeGet(body) },
			"scan":    func() error { _, err := r.decodeScan(body); return err },
			"rare":    func() error { return operate.Decode(body, new(manyMembers)) },
			"row":     func() error { return r.decodeRowSet(body, 1) },
			"ops":     func() error { return r.decodeMixedOps(body) },
			"members": func() error { return r.decodeBatch(body, r.decodeMemberOp) },
			"check":   func() error { return r.decodeCheck(body) },
		}
		for name, decode := range decoders {
			r.reset()
			r.backend, r.keyspace, r.caughtUp = node, ks, true
			err := decode()
			if err != nil {
				wantTellable(t, err)
				continue
			}
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(body, &fields); err != nil {
				t.Fatalf("%s took %q, which is no JSON object: %v", name, body, err)
			}
			if name == "get" || name == "check" {
				wantIDs(t, fields["ids"], r.ids)
			}
		}
	})
}

func wantIDs(t *testing.T, text []byte, got []uint64) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var list []any
	if err := d.Decode(&list); err != nil || len(list) != len(got) {
		t.Fatalf("ids of %q are read as %v (%v)", text, got, err)
	}
	for i, v := range list {
		if id, err := oracleID(v); err != nil || id != got[i] {
			t.Fatalf("id %d of %q is read as %d", i, text, got[i])
		}
	}
}

func TestParseUint64(t *testing.T) {
	for _, v := range []uint64{0, 9, 10, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		if got, ok := strictjson.ParseUint64([]byte(strconv.FormatUint(v, 10))); !ok || got != v {
			t.Errorf("%d is read as %d, %v", v, got, ok)
		}
	}
	for _, text := range []string{"", "18446744073709551616", "18446744073709551620", "28446744073709551615", "00", "1 ", "１"} {
		if got, ok := strictjson.ParseUint64([]byte(text)); ok {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}
