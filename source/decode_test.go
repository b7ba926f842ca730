package source

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/countd/countd/source/sink"
)

// decoders has a decoder of each format.
func decoders(t testing.TB) map[string]*Decoder {
	t.Helper()
	all := map[string]*Decoder{}
	for name, text := range map[string]string{
		"json":     `{}`,
		"map":      `{"map":{"keyspace":"posts","id":"$.post.id","column":"$.kind","add":"$.n"}}`,
		"user":     `{"map":{"user":"$.to","column":"like","add":1}}`,
		"set":      `{"map":{"keyspace":"$.k","id":7,"column":"like","set":"$.n"}}`,
		"member":   `{"map":{"keyspace":"posts","id":"$.post","column":"like","member":"$.by","set":"$.on"}}`,
		"joins":    `{"map":{"keyspace":"posts","id":"$.post","column":"like","member":"$.by","set":true}}`,
		"rows":     `{"format":"debezium","map":{"keyspace":"posts","id":"$.post_id","column":"like","member":"$.user_id"}}`,
		"visible":  `{"format":"debezium","map":{"if":"$.visible","keyspace":"posts","id":"$.post_id","column":"like","add":1}}`,
		"deleted":  `{"format":"debezium","map":{"unless":"$.deleted_at","keyspace":"posts","id":"$.post_id","column":"like","member":"$.user_id"}}`,
		"event":    `{"map":{"if":"$.on","keyspace":"posts","id":"$.post","column":"like","add":"$.n"}}`,
		"nested":   `{"format":"debezium","map":{"keyspace":"posts","id":"$.post.id","column":"$.kind","add":"$.weight"}}`,
		"debezium": `{"format":"debezium","map":{"keyspace":"posts","id":"$.post_id","column":"like","add":"$.weight"}}`,
	} {
		c, err := ParseConfig([]byte(`{"name":"a","type":"redis-stream","addr":"b","key":"k",` + strings.TrimPrefix(text, "{")))
		if text == `{}` {
			c, err = ParseConfig([]byte(`{"name":"a","type":"redis-stream","addr":"b","key":"k"}`))
		}
		if err != nil {
			t.Fatal(err)
		}
		all[name] = NewDecoder(c)
	}
	return all
}

// shownOps returns ops in the JSON form in which a message has them.
func shownOps(ops []sink.Op) string {
	var all []string
	for i := range ops {
		all = append(all, opJSON(&ops[i]))
	}
	return strings.Join(all, " ")
}

func TestDecode(t *testing.T) {
	all := decoders(t)
	for _, c := range []struct{ format, message, want string }{
		{"json", `{"keyspace":"posts","id":"1","add":{"like":1}}`, `{"add":{"like":1},"id":"1","keyspace":"posts"}`},
		{"json", ` [{"add":{"a":1,"b":-2},"id":18446744073709551615,"keyspace":"k","floor":0}, {"user":"7","add":{"dm":1}}] `,
			`{"add":{"a":1,"b":-2},"floor":0,"id":"18446744073709551615","keyspace":"k"} {"add":{"dm":1},"user":"7"}`},
		{"json", `{"id":1,"set":{"like":-9223372036854775808},"keyspace":"po\u0073ts"}`, `{"id":"1","keyspace":"posts","set":{"like":-9223372036854775808}}`},
		{"json", `[{"keyspace":"posts","column":"like","id":"1","member":"7","set":true},{"set":false,"member":18446744073709551615,"id":2,"column":"li\u006be","keyspace":"posts"}]`,
			`{"column":"like","id":"1","keyspace":"posts","member":"7","set":true} {"column":"like","id":"2","keyspace":"posts","member":"18446744073709551615","set":false}`},
		{"map", `{"x":[{"y":null}],"post":{"id":"5","id2":6},"kind":"like","n":-3}`, `{"add":{"like":-3},"id":"5","keyspace":"posts"}`},
		{"user", `{"to":9}`, `{"add":{"like":1},"user":"9"}`},
		{"set", `{"k":"posts","n":4}`, `{"id":"7","keyspace":"posts","set":{"like":4}}`},
		{"member", `{"post":1,"by":"7","on":false}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":false}`},
		{"joins", `{"post":1,"by":7}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":true}`},
		{"rows", `{"op":"c","after":{"post_id":1,"user_id":7}}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":true}`},
		{"rows", `{"op":"d","before":{"post_id":1,"user_id":7}}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":false}`},
		{"rows", `{"op":"u","before":{"post_id":1,"user_id":7,"x":1},"after":{"post_id":1,"user_id":7,"x":2}}`, ``},
		{"rows", `{"op":"u","before":{"post_id":1,"user_id":7},"after":{"post_id":1,"user_id":8}}`,
			`{"column":"like","id":"1","keyspace":"posts","member":"7","set":false} {"column":"like","id":"1","keyspace":"posts","member":"8","set":true}`},
		{"debezium", `{"op":"c","before":null,"after":{"post_id":1,"weight":2}}`, `{"add":{"like":2},"id":"1","keyspace":"posts"}`},
		{"debezium", `{"schema":{"op":"x"},"payload":{"op":"d","before":{"post_id":1,"weight":2},"after":null}}`, `{"add":{"like":-2},"id":"1","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":1,"weight":2},"after":{"post_id":1,"weight":5}}`, `{"add":{"like":3},"id":"1","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":1,"weight":2},"after":{"post_id":2,"weight":2}}`,
			`{"add":{"like":-2},"id":"1","keyspace":"posts"} {"add":{"like":2},"id":"2","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":1,"weight":2},"after":{"post_id":1,"weight":2}}`, ``},
		{"debezium", `{"op":"r","before":null,"after":{"post_id":1,"weight":2}}`, ``},
		// A row with a null part counts nothing. The other row of the change still counts.
		{"debezium", `{"op":"u","before":{"post_id":5,"weight":2},"after":{"post_id":null,"weight":2}}`, `{"add":{"like":-2},"id":"5","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":null,"weight":2},"after":{"post_id":703,"weight":2}}`, `{"add":{"like":2},"id":"703","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":5,"weight":null},"after":{"post_id":5,"weight":7}}`, `{"add":{"like":7},"id":"5","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":null,"weight":1},"after":{"post_id":null,"weight":2}}`, ``},
		{"debezium", `{"op":"c","after":{"post_id":null,"weight":2}}`, ``},
		{"debezium", `{"op":"d","before":{"post_id":null,"weight":2}}`, ``},
		{"rows", `{"op":"u","before":{"post_id":701,"user_id":1},"after":{"post_id":null,"user_id":1}}`, `{"column":"like","id":"701","keyspace":"posts","member":"1","set":false}`},
		{"rows", `{"op":"u","before":{"post_id":701,"user_id":null},"after":{"post_id":701,"user_id":8}}`, `{"column":"like","id":"701","keyspace":"posts","member":"8","set":true}`},
		{"rows", `{"op":"c","after":{"post_id":701,"user_id":null}}`, ``},
		{"nested", `{"op":"u","before":{"post":null,"kind":"like","weight":1},"after":{"post":{"id":3},"kind":"like","weight":1}}`, `{"add":{"like":1},"id":"3","keyspace":"posts"}`},
		{"nested", `{"op":"u","before":{"post":{"id":3},"kind":"like","weight":1},"after":{"post":{"id":3},"kind":null,"weight":1}}`, `{"add":{"like":-1},"id":"3","keyspace":"posts"}`},
		// Each row counts by its own condition.
		{"visible", `{"op":"c","after":{"post_id":1,"visible":true}}`, `{"add":{"like":1},"id":"1","keyspace":"posts"}`},
		{"visible", `{"op":"c","after":{"post_id":1,"visible":false}}`, ``},
		{"visible", `{"op":"u","before":{"post_id":1,"visible":true},"after":{"post_id":1,"visible":false}}`, `{"add":{"like":-1},"id":"1","keyspace":"posts"}`},
		{"visible", `{"op":"u","before":{"post_id":1,"visible":0},"after":{"post_id":1,"visible":1}}`, `{"add":{"like":1},"id":"1","keyspace":"posts"}`},
		{"visible", `{"op":"u","before":{"post_id":1,"visible":"t"},"after":{"post_id":2,"visible":"1"}}`,
			`{"add":{"like":-1},"id":"1","keyspace":"posts"} {"add":{"like":1},"id":"2","keyspace":"posts"}`},
		{"visible", `{"op":"u","before":{"post_id":1,"visible":true},"after":{"post_id":1,"visible":true}}`, ``},
		{"visible", `{"op":"u","before":{"post_id":1,"visible":null},"after":{"post_id":1,"visible":"TRUE"}}`, `{"add":{"like":1},"id":"1","keyspace":"posts"}`},
		{"visible", `{"op":"d","before":{"post_id":1,"visible":false}}`, ``},
		{"visible", `{"op":"d","before":{"post_id":1,"visible":true}}`, `{"add":{"like":-1},"id":"1","keyspace":"posts"}`},
		{"deleted", `{"op":"u","before":{"post_id":1,"user_id":7,"deleted_at":null},"after":{"post_id":1,"user_id":7,"deleted_at":"2026-01-02"}}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":false}`},
		{"deleted", `{"op":"u","before":{"post_id":1,"user_id":7,"deleted_at":1767312000},"after":{"post_id":1,"user_id":7,"deleted_at":0}}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":true}`},
		{"deleted", `{"op":"d","before":{"post_id":1,"user_id":7,"deleted_at":"2026-01-02"}}`, ``},
		{"event", `{"on":"1","post":"5","n":"3"}`, `{"add":{"like":3},"id":"5","keyspace":"posts"}`},
		{"event", `{"on":"0","post":"5","n":"3"}`, ``},
		// Numbers and booleans may have other spellings if the value is exact.
		{"map", `{"post":{"id":"5.00"},"kind":"like","n":"-3"}`, `{"add":{"like":-3},"id":"5","keyspace":"posts"}`},
		{"map", `{"post":{"id":7.0},"kind":"like","n":"12345678901234567.00"}`, `{"add":{"like":12345678901234567},"id":"7","keyspace":"posts"}`},
		{"map", `{"post":{"id":5},"kind":"like","n":-1.2e1}`, `{"add":{"like":-12},"id":"5","keyspace":"posts"}`},
		{"map", `{"post":{"id":5},"kind":"like","n":"1E+2"}`, `{"add":{"like":100},"id":"5","keyspace":"posts"}`},
		{"map", `{"post":{"id":5},"kind":"like","n":"-9223372036854775808"}`, `{"add":{"like":-9223372036854775808},"id":"5","keyspace":"posts"}`},
		{"map", `{"post":{"id":"\u0035"},"kind":"like","n":"0.00"}`, `{"add":{"like":0},"id":"5","keyspace":"posts"}`},
		{"map", `{"post":{"id":5},"kind":"like","n":true}`, `{"add":{"like":1},"id":"5","keyspace":"posts"}`},
		{"map", `{"post":{"id":5},"kind":"like","n":"false"}`, `{"add":{"like":0},"id":"5","keyspace":"posts"}`},
		{"set", `{"k":"posts","n":"4"}`, `{"id":"7","keyspace":"posts","set":{"like":4}}`},
		{"member", `{"post":"1","by":"7","on":"true"}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":true}`},
		{"member", `{"post":1,"by":7.0,"on":1}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":true}`},
		{"member", `{"post":1,"by":7,"on":"0"}`, `{"column":"like","id":"1","keyspace":"posts","member":"7","set":false}`},
		// Only the sink knows whether ids may be texts.
		{"json", `[{"keyspace":"posts","id":"a:b","add":{"like":1}},{"user":"ann","add":{"dm":1}}]`, `{"add":{"like":1},"id":"a:b","keyspace":"posts"} {"add":{"dm":1},"user":"ann"}`},
		{"json", `{"keyspace":"posts","column":"like","id":"é\u0021","member":"ann","set":true}`, `{"column":"like","id":"é!","keyspace":"posts","member":"ann","set":true}`},
		{"json", `[{"keyspace":"posts","column":"like","id":1,"member":"ann","set":true},{"keyspace":"posts","column":"like","id":"007","member":1,"set":true}]`,
			`{"column":"like","id":"1","keyspace":"posts","member":"ann","set":true} {"column":"like","id":"007","keyspace":"posts","member":"1","set":true}`},
		{"map", `{"post":{"id":"x-5"},"kind":"like","n":1}`, `{"add":{"like":1},"id":"x-5","keyspace":"posts"}`},
		{"member", `{"post":"p","by":"ann","on":false}`, `{"column":"like","id":"p","keyspace":"posts","member":"ann","set":false}`},
		{"debezium", `{"op":"u","before":{"post_id":"a","weight":2},"after":{"post_id":"a","weight":5}}`, `{"add":{"like":3},"id":"a","keyspace":"posts"}`},
		{"debezium", `{"op":"u","before":{"post_id":"a","weight":2},"after":{"post_id":"b","weight":2}}`,
			`{"add":{"like":-2},"id":"a","keyspace":"posts"} {"add":{"like":2},"id":"b","keyspace":"posts"}`},
		{"rows", `{"op":"u","before":{"post_id":"a","user_id":"x","n":1},"after":{"post_id":"a","user_id":"x","n":2}}`, ``},
		{"rows", `{"op":"u","before":{"post_id":"a","user_id":"x"},"after":{"post_id":"a","user_id":"y"}}`,
			`{"column":"like","id":"a","keyspace":"posts","member":"x","set":false} {"column":"like","id":"a","keyspace":"posts","member":"y","set":true}`},
		{"debezium", ``, ``},
		{"debezium", `null`, ``},
		{"debezium", `{"schema":{},"payload":null}`, ``},
	} {
		d := all[c.format]
		d.Reset()
		if err := d.Decode(&Message{Value: []byte(c.message)}); err != nil || shownOps(d.Ops) != c.want {
			t.Errorf("%s %s: got %s, %v, want %s", c.format, c.message, shownOps(d.Ops), err, c.want)
		}
	}
}

// TestPoison: every bad message has a reason that names the field, and adds no op.
func TestPoison(t *testing.T) {
	all := decoders(t)
	many := strings.Repeat(`{"user":1,"add":{"a":1}},`, opsMax+1)
	for _, c := range []struct{ format, message, want string }{
		{"json", ``, "empty"},
		{"json", "\x00\xff", "byte 0 of the message is 0x00"},
		{"json", `7`, "op: not an object"},
		{"json", `[]`, "a list without ops"},
		{"json", `[` + many + `1]`, "more than 10000 ops"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":1}`, "not valid JSON"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":1}} x`, "more after the end"},
		{"json", `{"keyspace":"posts","id":-1,"add":{"like":1}}`, "id: not an unsigned"},
		{"json", `{"keyspace":"posts","id":18446744073709551616,"add":{"like":1}}`, "id: not an unsigned"},
		{"json", `{"keyspace":"posts","id":1.0,"add":{"like":1}}`, "id: not an unsigned"},
		{"json", `{"keyspace":"posts","add":{"like":1}}`, "id: missing"},
		{"json", `{"id":1,"add":{"like":1}}`, "keyspace: missing"},
		{"json", `{"keyspace":7,"id":1,"add":{"like":1}}`, "keyspace: not a string"},
		{"json", `{"keyspace":"posts","id":1}`, "add: missing"},
		{"json", `{"keyspace":"posts","id":1,"add":{}}`, "add: at least one column"},
		{"json", `{"keyspace":"posts","id":1,"add":[]}`, "add: not an object"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":1,"like":1}}`, "add.like: given twice"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":9223372036854775808}}`, "add.like: not a signed"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":"1"}}`, "add.like: not a signed"},
		{"json", `{"keyspace":"posts","id":1,"id":2,"add":{"like":1}}`, "id: given twice"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":1},"set":{"like":1}}`, "given twice"},
		{"json", `{"keyspace":"posts","id":1,"set":{"like":1},"floor":0}`, "floor: of an add only"},
		{"json", `{"keyspace":"posts","user":1,"add":{"like":1}}`, "user: rows of unread"},
		{"json", `{"keyspace":"unread","id":1,"add":{"like":1}}`, "id: rows of unread"},
		{"json", `{"user":1,"set":{"like":1}}`, "set: counts of unread"},
		{"json", `{"keyspace":"posts","id":1,"add":{"like":1},"member":7}`, "add: an op with a member"},
		{"json", `{"keyspace":"posts","id":1,"member":7,"set":true}`, "column: missing"},
		{"json", `{"keyspace":"posts","id":1,"column":"like","set":true}`, "member: missing"},
		{"json", `{"keyspace":"posts","id":1,"column":"like","member":7}`, "set: missing"},
		{"json", `{"keyspace":"posts","id":1,"column":"like","member":7,"set":1}`, "set: not an object"},
		{"json", `{"keyspace":"posts","id":1,"column":"like","member":-7,"set":true}`, "member: not an unsigned"},
		{"json", `{"keyspace":"posts","id":1,"column":7,"member":7,"set":true}`, "column: not a string"},
		{"json", `{"keyspace":"posts","id":1,"column":"like","member":7,"set":true,"floor":0}`, "floor: of an add only"},
		{"json", `{"keyspace":"posts","id":1,"column":"like","member":7,"member":8,"set":true}`, "member: given twice"},
		{"json", `{"keyspace":"posts","column":"like","member":7,"set":true}`, "id: missing"},
		{"json", `{"user":1,"column":"at","member":7,"set":true}`, "member: rows of unread"},
		{"json", `[{"keyspace":"posts","id":1,"add":{"like":1}},{"keyspace":"posts","id":"","add":{"like":1}}]`, "[1].id: not an unsigned"},
		{"member", `{"post":1,"by":7,"on":2}`, "$.on: neither true nor false"},
		{"member", `{"post":1,"by":7,"on":"yes"}`, "$.on: neither true nor false"},
		{"member", `{"post":1,"by":7,"on":null}`, "$.on: neither true nor false"},
		{"member", `{"post":1,"by":9007199254740994.0,"on":true}`, "$.by: not an unsigned"}, // a float of this size may have lost digits
		{"map", `{"post":{"id":1},"kind":"like","n":"1.5"}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":"NaN"}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":""}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":"+1"}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":"9223372036854775808"}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":"1e19"}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":"1e999999999999"}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1},"kind":"like","n":null}`, "$.n: not a signed"},
		{"visible", `{"op":"d","before":{"post_id":1}}`, "before: $.visible: missing"},
		{"visible", `{"op":"c","after":{"post_id":1,"visible":"x"}}`, "after: $.visible: neither true nor false"},
		{"json", "\x00\x00\x00\x00\x01{}", "byte 0 of the message is 0x00, as in Confluent's wire format"},
		{"debezium", "\x00\x00\x00\x00\x01{}", "byte 0 of the message is 0x00, as in Confluent's wire format"},
		{"map", "\xef\xbb\xbf{}", "byte 0 of the message is 0xef, that of a byte order mark"},
		{"map", "\xff\xfe{\x00}\x00", "byte 0 of the message is 0xff, that of UTF-16's byte order mark"},
		{"map", "\x1f\x8b\x08", "byte 0 of the message is 0x1f, which begins no JSON"},
		{"member", `{"post":1,"by":"","on":true}`, "$.by: not an unsigned"},
		{"member", `{"post":1,"on":true}`, "$.by: missing"},
		{"map", ``, "empty"},
		{"map", `[]`, "$.kind: missing"},
		{"map", `{"post":{"id":1},"n":1}`, "$.kind: missing"},
		{"map", `{"post":7,"kind":"like","n":1}`, "$.post.id: missing"},
		{"map", `{"post":{"id":null},"kind":"like","n":1}`, "$.post.id: not an unsigned"},
		{"map", `{"post":{"id":1},"kind":1,"n":1}`, "$.kind: not a string"},
		{"map", `{"post":{"id":1},"kind":"","n":1}`, "$.kind: empty"},
		{"map", `{"post":{"id":1},"kind":"like","n":1.5}`, "$.n: not a signed"},
		{"map", `{"post":{"id":1,"id":2},"kind":"like","n":1}`, "id: given twice"},
		{"map", `{"post":{"id":1},"kind":"like","n":1}}`, "more after the end"},
		{"map", strings.Repeat(`{"a":`, 100), "nested too deep"},
		{"set", `{"k":"unread","n":4}`, "keyspace: rows of unread"},
		{"debezium", `[]`, "envelope: not an object"},
		{"debezium", `{"after":{}}`, "op: missing"},
		{"debezium", `{"op":"x"}`, `op: "x" is none of`},
		{"debezium", `{"op":"c","after":null}`, "after: missing"},
		{"debezium", `{"op":"c","after":{"weight":1}}`, "after: $.post_id: missing"},
		{"debezium", `{"op":"d","before":null}`, "REPLICA IDENTITY FULL"},
		{"debezium", `{"op":"u","before":null,"after":{"post_id":1,"weight":1}}`, "REPLICA IDENTITY FULL"},
		{"debezium", `{"op":"d","before":{"post_id":1}}`, "before: $.weight: missing"},
		{"debezium", `{"op":"d","before":{"post_id":1,"weight":-9223372036854775808}}`, "cannot be taken back"},
		{"debezium", `{"op":"u","before":{"post_id":1,"weight":-2},"after":{"post_id":1,"weight":9223372036854775807}}`, "does not fit"},
		{"debezium", `{"op":"t"}`, "the table was truncated"},
	} {
		d := all[c.format]
		d.Reset()
		err := d.Decode(&Message{Value: []byte(c.message)})
		if err == nil || !strings.Contains(err.Error(), c.want) || len(d.Ops) > 0 {
			t.Errorf("%s %s: got %v and %d ops, want %q", c.format, shown(c.message), err, len(d.Ops), c.want)
		}
	}
}

// TestDecodeAllocates checks that decoding allocates nothing once the decoder has its names and
// chunks.
func TestDecodeAllocates(t *testing.T) {
	for name, message := range map[string]string{
		"json":     `{"keyspace":"posts","id":"1","add":{"like":1}}`,
		"map":      `{"post":{"id":5},"kind":"like","n":-3}`,
		"member":   `{"post":1,"by":7,"on":true}`,
		"debezium": `{"op":"c","before":null,"after":{"post_id":1,"weight":2}}`,
	} {
		d := decoders(t)[name]
		m := &Message{Value: []byte(message)}
		if got := testing.AllocsPerRun(1000, func() { d.Reset(); _ = d.Decode(m) }); got > 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// fuzzDecoder: a decoder adds all ops of a message or none, and only for valid JSON.
func fuzzDecoder(f *testing.F, format string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	d := decoders(f)[format]
	f.Fuzz(func(t *testing.T, value []byte) {
		d.Reset()
		err := d.Decode(&Message{Position: Position{Lo: 3}, Value: value})
		if err != nil {
			if len(d.Ops) > 0 || err.Error() == "" {
				t.Fatalf("%q: %v and %d ops", value, err, len(d.Ops))
			}
			return
		}
		if len(value) > 0 && !json.Valid(value) {
			t.Fatalf("%q was accepted", value)
		}
		for _, op := range d.Ops {
			if op.Keyspace == "" || len(op.Cells) == 0 || op.Position.Lo != 3 {
				t.Fatalf("%q: %+v", value, op)
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	fuzzDecoder(f, "json", `[{"keyspace":"posts","id":"1","add":{"like":1},"floor":0},{"user":7,"add":{"a":-1}}]`, `{"keyspace":"k","id":1,"set":{"c":1}}`, `{"keyspace":"k","column":"c","id":1,"member":2,"set":true}`)
}

func FuzzMap(f *testing.F) {
	fuzzDecoder(f, "map", `{"post":{"id":5},"kind":"like","n":-3,"x":[1e5,"\u0041",null]}`)
}

func FuzzDebezium(f *testing.F) {
	for _, op := range []string{"c", "d", "u", "r", "t"} {
		f.Add([]byte(fmt.Sprintf(`{"op":%q,"before":{"post_id":1,"weight":2},"after":{"post_id":1,"weight":5}}`, op)))
	}
	fuzzDecoder(f, "debezium", `{"payload":{"op":"c","after":{"post_id":1,"weight":1}}}`)
}

func BenchmarkDecode(b *testing.B) {
	d := decoders(b)["json"]
	m := &Message{Value: []byte(`{"keyspace":"posts","id":"4467107636950632","add":{"like":1}}`)}
	b.ReportAllocs()
	for b.Loop() {
		d.Reset()
		_ = d.Decode(m)
	}
}
