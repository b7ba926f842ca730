package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// generator generates pipelines with few different keys, so that commands share keys.
type generator struct {
	rand    *rand.Rand
	version int
	used    map[string]bool
	texts   bool // ids and members are texts
	multi   bool // the generator is within a transaction, whose keys must be on one shard
}

func pick[T any](g *generator, from ...T) T { return from[g.rand.IntN(len(from))] }

func (g *generator) pipeline() [][]string {
	var all [][]string
	for len(all) < 1+g.rand.IntN(12) {
		if g.rand.IntN(8) == 0 {
			all = append(all, g.transaction()...)
		} else {
			all = append(all, g.note(g.command(g.rand.IntN(6))))
		}
	}
	return all
}

// transaction returns a transaction on a single row, because a transaction must be on one shard.
func (g *generator) transaction() [][]string {
	id := g.rand.IntN(6)
	g.multi = true
	defer func() { g.multi = false }()
	all := [][]string{g.note([]string{"MULTI"})}
	for range g.rand.IntN(5) {
		for {
			if words := g.command(id); !slices.Contains([]string{"SELECT", "CLIENT", "EXEC", "DISCARD", "AUTH", "COMMAND", "SADD", "SREM", "SCARD", "SISMEMBER", "SMISMEMBER"}, strings.ToUpper(words[0])) {
				all = append(all, g.note(words))
				break
			}
		}
	}
	return append(all, g.note([]string{pick(g, "EXEC", "EXEC", "exec", "DISCARD")}))
}

// note records that the generator has used a command, and returns the command.
func (g *generator) note(words []string) []string {
	g.used[strings.ToLower(words[0])] = true
	return words
}

func (g *generator) number() string {
	return pick(g, "0", "1", "-1", "2", "-2", "7", "1000000", "9223372036854775807", "-9223372036854775808", "-9223372036854775807", strconv.Itoa(g.rand.IntN(100000)))
}

// anyNumber returns a number. Some are written in an invalid form.
func (g *generator) anyNumber() string {
	return pick(g, g.number(), g.number(), g.number(), "", "x", "1.5", "+1", "01", " 1", "9223372036854775808")
}

// command returns a command about the row of an id.
func (g *generator) command(id int) []string {
	field := func() string { return pick(g, "repost", "comment", "like", "view") }
	text := "%d"
	if g.texts {
		text = "é-%d x"
	}
	count := func() string { return fmt.Sprintf("posts:"+text+":%s", id, field()) }
	row := fmt.Sprintf("posts:"+text, id+105) // on the same one of 7 shards as id
	either := func() string { return pick(g, count(), row) }
	several := func(of func() string) (words []string) {
		for range 1 + g.rand.IntN(4) {
			words = append(words, of())
		}
		return words
	}
	pairsOf := func(of func() string) (words []string) {
		for range 1 + g.rand.IntN(4) {
			words = append(words, of(), g.number())
		}
		return words
	}
	set := fmt.Sprintf("users:"+text+":followers:members", id) // no other command changes the count of this column
	if !g.multi {
		either = func() string { return pick(g, count(), row, set) }
	}
	member := func() string {
		if g.texts {
			return pick(g, "x", "01", "a:b", "ünï", strconv.Itoa(g.rand.IntN(6)), strconv.Itoa(g.rand.IntN(6)))
		}
		return pick(g, "0", "18446744073709551615", strconv.Itoa(g.rand.IntN(6)), strconv.Itoa(g.rand.IntN(6)))
	}
	noMember := func() string { return pick(g, member(), member(), "x", "-1", "", "1.5", "18446744073709551616") }
	words := pick(g,
		append([]string{"SADD", set}, several(member)...), append([]string{"SREM", set}, several(noMember)...), []string{"SCARD", set},
		[]string{"SISMEMBER", set, noMember()}, append([]string{"SMISMEMBER", set}, several(noMember)...),
		[]string{"GET", count()}, append([]string{"MGET"}, several(count)...), []string{"SET", count(), g.number()}, []string{"SET", count(), g.number(), "GET"},
		append([]string{"MSET"}, pairsOf(count)...), []string{"GETSET", count(), g.number()}, []string{"GETDEL", count()},
		[]string{"INCR", count()}, []string{"DECR", count()}, []string{"INCRBY", count(), g.anyNumber()}, []string{"DECRBY", count(), g.anyNumber()},
		[]string{"HGET", row, field()}, append([]string{"HMGET", row}, several(field)...), []string{"HGETALL", row}, append([]string{"HSET", row}, pairsOf(field)...),
		[]string{"HINCRBY", row, field(), g.anyNumber()}, append([]string{"HDEL", row}, several(field)...), []string{"HLEN", row}, []string{"HEXISTS", row, field()},
		append([]string{"DEL"}, several(func() string { return pick(g, count(), row) })...), append([]string{"EXISTS"}, several(either)...), []string{"TYPE", either()}, []string{"TTL", either()},
		[]string{"PING"}, []string{"PING", "a b"}, []string{"ECHO", "x\r\ny"}, []string{"SELECT", pick(g, "0", "99", "x")},
		[]string{"CLIENT", "SETNAME", pick(g, "me", "a b", "")}, []string{"CLIENT", "GETNAME"}, []string{"CLIENT", "NOTHING"}, []string{"CLIENT", "GETNAME", "x"},
		[]string{"NOTHING", "a", "b c"}, []string{"EXEC"}, []string{"DISCARD"}, []string{"AUTH", "x"}, []string{"COMMAND", "NOTHING"},
	)
	arity := 0
	if cmd := newCommands().find([]byte(words[0])); cmd != nil {
		arity = cmd.arity
	}
	switch g.rand.IntN(30) {
	case 0:
		if arity > 0 || words[0] == "SET" {
			return append(words, "too", "many")
		}
	case 1:
		if words[0] != "COMMAND" {
			return words[:1]
		}
	case 2:
		words[0] = strings.ToLower(words[0])
	}
	return words
}
