package redis

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
)

// wholeRow stands for all columns of a row.
const wholeRow = -1

// key is the target that a Redis key names:
//
//	posts:4467107636950632:like   one count, which Redis has as a string
//	posts:4467107636950632        a row, which Redis has as a hash
//	posts:4467107636950632:like:members   the members of a column, which Redis has as a set
type key struct {
	table  *table
	id     uint64
	column int  // wholeRow for a whole row
	set    bool // whether it is the set of the column's members
}

// membersSuffix ends the key of a set of members. It counts only after a column, because a column
// may have the name members.
const membersSuffix = ":members"

// argumentError describes the fault of an argument, most often a key.
type argumentError string

func (e argumentError) Error() string { return "ERR " + string(e) }

const errNoKeyspaces = codedError("LEADERLESS this node does not know its cluster's keyspaces yet")

const errWrongType = codedError("WRONGTYPE Operation against a key holding the wrong kind of value")

// codedError is a complete error text, including its code.
type codedError string

func (e codedError) Error() string { return string(e) }

// shownBytesMax bounds how much of a key an error message repeats.
const shownBytesMax = 128

// shown shortens a client's bytes for an error message.
func shown(text []byte) string { return string(text[:min(len(text), shownBytesMax)]) }

// key parses a key of any form.
func (b *batch) key(text []byte) (key, error) {
	at := bytes.IndexByte(text, ':')
	if at < 0 {
		return key{}, badForm(text)
	}
	t := b.tableOf(text[:at])
	if t == nil && len(b.conn.server.node().Keyspaces()) == 0 {
		return key{}, errNoKeyspaces
	}
	if t == nil {
		return key{}, b.noKeyspace(text[:at])
	}
	rest := text[at+1:]
	set := false
	if column, ok := bytes.CutSuffix(rest, []byte(membersSuffix)); ok && bytes.IndexByte(column, ':') >= 0 {
		rest, set = column, true
	}
	column := wholeRow
	if end := bytes.IndexByte(rest, ':'); end >= 0 {
		if column = t.columnOf(rest[end+1:]); column < 0 {
			return key{}, t.noColumn(rest[end+1:])
		}
		rest = rest[:end]
	}
	id, ok := parseID(rest)
	if !ok {
		return key{}, badForm(text)
	}
	return key{t, id, column, set}, nil
}

// noKeyspace returns the error for a name that is not a counter keyspace. It is a final
// error if a keyspace of another kind has the name.
func (b *batch) noKeyspace(name []byte) error {
	problem := fmt.Sprintf("no counter keyspace '%s'", shown(name))
	if b.conn.server.node().Keyspace(string(name)) != nil {
		return argumentError(problem)
	}
	return unknown(name, problem)
}

func badForm(text []byte) error {
	return argumentError(fmt.Sprintf("'%s' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615", shown(text)))
}

// idBytesMax bounds the digits of an id: 20, and the leading zeros that tools pad with.
const idBytesMax = 32

// parseID parses an id. It ignores leading zeros, which redis-benchmark sends.
func parseID(text []byte) (uint64, bool) {
	if len(text) > idBytesMax {
		return 0, false
	}
	for len(text) > 1 && text[0] == '0' {
		text = text[1:]
	}
	return strictjson.ParseUint64(text)
}

// count parses the key of one count.
func (b *batch) count(text []byte) (key, error) {
	k, err := b.key(text)
	if err == nil && (k.column == wholeRow || k.set) {
		err = errWrongType
	}
	return k, err
}

// set parses the key of a set of members.
func (b *batch) set(text []byte) (key, error) {
	k, err := b.key(text)
	if err == nil && !k.set {
		err = errWrongType
	}
	return k, err
}

// row parses the key of a row.
func (b *batch) row(text []byte) (key, error) {
	k, err := b.key(text)
	if err == nil && k.column != wholeRow {
		err = errWrongType
	}
	return k, err
}

// field returns the column of a row that a field of its hash names.
func (k key) field(name []byte) (int, error) {
	if column := k.table.columnOf(name); column >= 0 {
		return column, nil
	}
	return 0, k.table.noColumn(name)
}

func (t *table) noColumn(name []byte) error {
	return unknown(name, fmt.Sprintf("keyspace '%s' has no column '%s'", t.ks.Name, shown(name)))
}

// columnOf returns the index of a column, or -1.
func (t *table) columnOf(name []byte) int {
	for i, column := range t.ks.Columns {
		if string(name) == column && column != "" {
			return i
		}
	}
	return -1
}

func appendRowKey(dst []byte, ks *shard.Keyspace, id uint64) []byte {
	dst = append(append(dst, ks.Name...), ':')
	return strconv.AppendUint(dst, id, 10)
}

// isCounters reports whether a keyspace has counters. Keys name only these.
func isCounters(ks *shard.Keyspace) bool { return ks != nil && ks.Kind == shard.KindCounters }

// fieldError returns the error for an argument, in the format of the HTTP API.
func fieldError(field, problem string) error { return argumentError(field + ": " + problem) }

// nameError is an error about a keyspace or column that this node does not know. Another
// node may have just created it and acknowledged that.
type nameError string

// unknown returns the error for an unknown name. An invalid name cannot exist, so its error asks
// for no lookup.
func unknown(name []byte, problem string) error {
	if catalog.ValidName(name) { // the rule for keyspaces and columns is the same as for channels
		return nameError(problem)
	}
	return argumentError(problem)
}

func (e nameError) Error() string { return "ERR " + string(e) }
