package source

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"
)

const likes = `
name: likes
type: kafka
brokers: [127.0.0.1:9092]
topic: likes
start: earliest
format: json
map: {keyspace: posts, id: $.post_id, column: like, add: 1}
on-error: dead-letter
batch: {messages: 10000, linger: 20ms}
`

func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte(likes))
	if err != nil {
		t.Fatal(err)
	}
	if c.DeadLetters != "likes.dead" || c.Batch.Messages != 10_000 || time.Duration(c.Batch.Linger) != 20*time.Millisecond {
		t.Errorf("read %+v", c)
	}
	again, err := ParseConfig(c.JSON())
	if err != nil || string(again.JSON()) != string(c.JSON()) {
		t.Errorf("%s is read as %v, %v", c.JSON(), again, err)
	}
	start, err := ParseConfig([]byte("{name: a, type: redis-stream, addr: 'x:1', key: k, start: {0: 123, 7: 5-6, 8: 0-9}}"))
	if err != nil || start.Start.At[0] != (Position{Hi: 123}) || start.Start.At[7] != (Position{Hi: 5, Lo: 6}) || start.Start.At[8] != (Position{Lo: 9}) {
		t.Errorf("start %+v, %v", start, err)
	}
	if again, err = ParseConfig(start.JSON()); err != nil || !maps.Equal(again.Start.At, start.Start.At) {
		t.Errorf("%s is read as %v, %v", start.JSON(), again, err)
	}
	log, err := ParseConfig([]byte("{start: {0: 123}, name: a, type: nats, url: 'nats://x:1', stream: S, dead-letters: d}"))
	if err != nil || log.Start.At[0] != (Position{Lo: 123}) || !strings.Contains(string(log.JSON()), `"start":{"0":123}`) {
		t.Errorf("start %+v, %v", log, err)
	}
	if start.SameMeaning(c) || !c.SameMeaning(c) {
		t.Error("SameMeaning is wrong")
	}
	other, _ := ParseConfig([]byte(strings.Replace(likes, "add: 1", "add: 2", 1)))
	faster, _ := ParseConfig([]byte(strings.Replace(likes, "20ms", "1ms", 1)))
	if c.SameMeaning(other) || !c.SameMeaning(faster) {
		t.Error("a map changes the meaning, a batch does not")
	}
}

func TestBadConfig(t *testing.T) {
	const kafka = "name: a\ntype: kafka\nbrokers: [b]\ntopic: t\n"
	const pg = "name: a\ntype: postgres\ndsn: d\nslot: s\npublication: p\n"
	for text, want := range map[string]string{
		"":                             "empty",
		"a: [":                         "line 1",
		"[1]":                          "not an object",
		"- a":                          "not an object",
		kafka + "---\na: 1":            "more than one document",
		kafka + "colour: red":          "colour: no such field",
		kafka + "topic: u":             "topic: given twice",
		kafka + "start: soon":          "start: neither earliest",
		kafka + "start: {x: 1}":        "start.x: not a partition",
		kafka + "start: {0: x}":        "start.0:",
		kafka + "format: xml":          "format: neither json nor debezium",
		kafka + "format: debezium":     "map: missing",
		kafka + "on-error: panic":      "on-error: none of",
		kafka + "batch: {messages: 0}": "batch.messages: not a number from 1 to 100000",
		kafka + "batch: {linger: 1h}":  "batch.linger: not a duration from 0s to 10s",
		kafka + "batch: {size: 1}":     "batch.size: no such field",
		kafka + "addr: x":              "addr: not a field of type kafka",
		kafka + "map: {}":              "map.keyspace: missing",
		kafka + "map: {keyspace: k, id: $.id, column: c}":                                             "map.add: missing",
		kafka + "map: {keyspace: k, id: $.id, column: c, add: one}":                                   "map.add: neither a path",
		kafka + "map: {keyspace: k, id: x, column: c, add: 1}":                                        "map.id: neither a path",
		kafka + "map: {keyspace: k, id: '$.a[0]', column: c, add: 1}":                                 "map.id: \"a[0]\" is not a plain name",
		kafka + "map: {keyspace: k, id: $, column: c, add: 1}":                                        "map.id: not a path",
		kafka + "map: {keyspace: k, id: $.a, column: $.a.b, add: 1}":                                  "map.column: it continues",
		kafka + "map: {keyspace: k, id: $.a, column: $.a, add: 1}":                                    "map.column: it is",
		kafka + "map: {keyspace: k, user: $.a, column: c, add: 1}":                                    "map.keyspace: not with user",
		kafka + "map: {user: $.a, column: c, member: 1, set: true}":                                   "map.set: neither",
		kafka + "map: {keyspace: k, id: $.a, column: c, member: $.b, add: 1}":                         "map.add: not with member",
		kafka + "map: {keyspace: k, id: $.a, column: c, member: $.b}":                                 "map.set: missing",
		kafka + "map: {keyspace: k, id: $.a, column: c, member: $.b, set: 1}":                         "map.set: neither true, false",
		kafka + "map: {keyspace: k, id: $.a, column: c, member: x, set: true}":                        "map.member: neither a path",
		kafka + "map: {keyspace: k, id: $.a, column: c, add: 1, set: 1}":                              "map.set: not with add",
		kafka + "format: debezium\nmap: {keyspace: k, id: $.a, column: c, set: 1}":                    "map.set: neither",
		kafka + "dead-letters: t":                                                                     "dead-letters: the source would read",
		kafka + "username: u":                                                                         "mechanism: missing",
		kafka + "username: u\nmechanism: md5":                                                         "mechanism: none of",
		kafka + "password-file: f":                                                                    "username: missing",
		kafka + "tls: {cert-file: f}":                                                                 "tls: cert-file and key-file",
		kafka + "tls: {verify: no}":                                                                   "tls.verify: no such field",
		"name: a\ntype: nats\nurl: nats://u:p@h\nstream: s":                                           "url: holds a password",
		"name: a\ntype: nats\nurl: nats://token@h\nstream: s":                                         "url: holds a password or a token",
		"name: a\ntype: nats\nurl: nats://h,nats://u:p@i\nstream: s":                                  "url: holds a password",
		"name: a\ntype: nats\nurl: u:p@h\nstream: s":                                                  "url: holds a password",
		"name: a\ntype: redis-stream\naddr: redis://:p@h\nkey: k":                                     "addr: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: host=x password=y", 1) + "prefix: x":                      "dsn: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: host=x password = y", 1) + "prefix: x":                    "dsn: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: postgres://u:p%zz@h/d", 1) + "prefix: x":                  "dsn: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: postgres://u:p/q@h/d", 1) + "prefix: x":                   "dsn: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: 'postgres://h1:1,h2:2/d?sslpassword=p'", 1) + "prefix: x": "dsn: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: u:p@h/d", 1) + "prefix: x":                                "dsn: holds a password",
		strings.Replace(pg, "dsn: d", "dsn: postgres://h/d?pass%77ord=p", 1) + "prefix: x":            "dsn: holds a password",
		"name: a\ntype: redis-stream\naddr: u:p@h:6379\nkey: k":                                       "addr: holds a password",
		"name: a\ntype: redis-stream\naddr: p@h:6379\nkey: k":                                         "addr: holds a password",
		"name: a\ntype: kafka\nbrokers: [b, 'u:p@h:9092']\ntopic: t":                                  "brokers[1]: holds a password",
		"name: a":                              "type: missing",
		"type: kafka":                          "name: missing",
		"name: A/b\ntype: kafka":               "name: not 1 to 64",
		"name: a\ntype: pulsar":                "type: none of",
		"name: a\ntype: kafka\ntopic: t":       "brokers: missing",
		"name: a\ntype: kafka\nbrokers: b":     "brokers: not a list",
		"name: a\ntype: nats\nurl: u":          "stream: missing",
		"name: a\ntype: redis-stream\naddr: b": "key: missing",
		pg:                                     "prefix: missing",
		pg + "prefix: x\nformat: debezium\nmap: {keyspace: k, id: $.a, column: c, add: 1}": "prefix: not with",
		pg + "prefix: x\ndead-letters: \"a;drop\"":                                         "dead-letters: not the name",
		strings.Replace(pg, "slot: s", "slot: 'S;'", 1) + "prefix: x":                      "slot: not 1 to 63",
		"name: " + strings.Repeat("a", 2000):                                               "name: over 1024 bytes",
		strings.Repeat("#", configBytesMax+1):                                              "over 65536 bytes",
	} {
		_, err := ParseConfig([]byte(text))
		if _, is := errors.AsType[*ConfigError](err); !is || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// An address with a user and a port has no password.
func TestAddressesWithoutPasswords(t *testing.T) {
	for _, address := range []string{
		"postgres://u@h:5432/d", "postgres://h1:1,h2:2/d?options=a:b@c", "redis://u@h:6379", "h:6379", "host=h user=u passfile=/f",
		"postgres://h:5432/d@b", "postgres://h1:1,[::1]:2/d@b", "postgres://u@%2Frun/d", "postgres://u@h:1?options=a@b", "host=::1 user=u@c",
		"postgres://h1,h2:/d@b", "postgres://%2Frun/d@b", "postgres:///d@b",
	} {
		if holdsPassword(address) {
			t.Errorf("%s is said to hold a password", address)
		}
	}
}

// The check finds a password even in an address that a library refuses or misreads.
func TestAddressesWithPasswords(t *testing.T) {
	for _, address := range []string{
		"u:secret@h/d", "u:secret@h/d?sslmode=disable", "dbname=d u:secret@h", "host=u:secret@h", "u:sec=ret@h/d",
		"postgres://u:sec/ret@h/d", "postgres://u:sec?ret@h/d", "postgres://u:1?ret@h/d", "postgres://u:sec?r/et@h/d", "postgres://u:sec#ret@h/d",
		"postgres://u@c:secret@h/d", "postgres://u@c:sec/ret@h/d", "postgres://u:sec@ret@h/d", "postgres://u:%zz@h/d",
		"postgres://u:12/34@h/d", "postgres://u:12/34@h:5432",
		"postgres://h/d?p%61ssword=secret", "postgres://h/d?x=%zz&%70assword=secret%zz", "postgres://h/d#?pass%57ord=secret", "postgres://h/d?password%20=secret",
	} {
		if !holdsPassword(address) {
			t.Errorf("%s is said to hold no password", address)
		}
		_, err := ParseConfig([]byte("{name: a, type: postgres, slot: s, publication: p, prefix: x, dsn: '" + address + "'}"))
		if err == nil || err.Error() != "dsn: holds a password: name a file on each node with password-file" {
			t.Errorf("%s is refused as %v", address, err)
		}
	}
}

// FuzzConfig: ParseConfig accepts the JSON of each configuration that it has parsed, and the result
// has the same meaning.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(likes))
	f.Add([]byte(`{"name":"a","type":"postgres","dsn":"d","slot":"s","publication":"p","prefix":"x","start":{"0":"0/16B3748"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(text)
		if err != nil {
			return
		}
		again, err := ParseConfig(c.JSON())
		if err != nil || string(again.JSON()) != string(c.JSON()) {
			t.Fatalf("%q became %s, and that %v", text, c.JSON(), err)
		}
		NewDecoder(c)
	})
}
