package redis

import (
	"bytes"
	"fmt"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// wholeRow means all columns of a row.
const wholeRow = -1

// key is the target that a Redis key names:
//
//	posts:4467107636950632:like   one count, which Redis has as a string
//	posts:4467107636950632        a row, which Redis has as a hash
//	posts:4467107636950632:like:members   the members of a column, which Redis has as a set
type key struct {
	table  *table
	id     uint64
	late   *names.Text // of a text id whose number is not known yet; then id is 0
	column int         // wholeRow for a whole row
	set    bool        // the key names the set of the column's members, not its count
}

// membersSuffix ends the key of a set of members. It has this meaning only after a column, because
// a column may have the name members.
const membersSuffix = ":members"

// key parses a key of any form.
func (b *batch) key(text []byte) (key, error) {
	at := bytes.IndexByte(text, ':')
	if at < 0 {
		return key{}, badForm(text, "")
	}
	t := b.tableOf(text[:at])
	if t == nil {
		return key{}, b.noKeyspace(text[:at])
	}
	rest := text[at+1:]
	if t.ks.Names != "" {
		return b.textKey(t, text, rest)
	}
	set := false
	if column, ok := bytes.CutSuffix(rest, []byte(membersSuffix)); ok && bytes.IndexByte(column, ':') >= 0 {
		rest, set = column, true
	}
	column := wholeRow
	if end := bytes.IndexByte(rest, ':'); end >= 0 {
		var err error
		if column, err = t.field(rest[end+1:]); err != nil {
			return key{}, err
		}
		rest = rest[:end]
	}
	id, ok := parseID(rest)
	if !ok {
		return key{}, badForm(text, names.Hint)
	}
	return key{table: t, id: id, late: nil, column: column, set: set}, nil
}

// noKeyspace returns the error for a name that is not a counter keyspace. If a keyspace of another
// kind has the name, the error causes no lookup.
func (b *batch) noKeyspace(name []byte) error {
	node := b.conn.server.node()
	problem := fmt.Sprintf("no counter keyspace '%s'", resp.Shown(name))
	switch {
	case len(node.Keyspaces()) == 0:
		return errNoKeyspaces
	case node.Keyspace(string(name)) != nil:
		return resp.ArgumentError(problem)
	}
	return unknown(name, problem)
}

func badForm(text []byte, hint string) error {
	return resp.ArgumentError(fmt.Sprintf("'%s' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615%s", resp.Shown(text), hint))
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
	if err == nil {
		err = k.lacksColumn(text)
	}
	return k, wrongIf(err, k.column == wholeRow || k.set)
}

// set parses the key of a set of members.
func (b *batch) set(text []byte) (key, error) {
	k, err := b.key(text)
	if of, ok := bytes.CutSuffix(text, []byte(membersSuffix)); err == nil && ok {
		err = k.lacksColumn(of)
	}
	return k, wrongIf(err, !k.set)
}

// row parses the key of a row.
func (b *batch) row(text []byte) (key, error) {
	k, err := b.key(text)
	return k, wrongIf(err, k.column != wholeRow)
}

// wrongIf returns err. If err is nil and wrong is set, it returns the error for a key of the wrong
// type.
func wrongIf(err error, wrong bool) error {
	if err == nil && wrong {
		err = errWrongType
	}
	return err
}

// field returns the number of a column.
func (t *table) field(name []byte) (int, error) {
	if column := t.ks.ColumnOf(name); column >= 0 {
		return column, nil
	}
	return 0, unknown(name, fmt.Sprintf("keyspace '%s' has no column '%s'", t.ks.Name, resp.Shown(name)))
}

// isCounters reports whether a keyspace has counters. Keys can name only keyspaces with counters.
func isCounters(ks *shard.Keyspace) bool { return ks != nil && ks.Kind == kinds.Counters }

var errTooManyKeys = resp.ArgumentError(fmt.Sprintf("a command takes at most %d keys", rowsMax))

// readKeys parses texts in groups of step. The first text of each group is a key. The keys are in
// the batch's memory.
func (b *batch) readKeys(texts [][]byte, step int, read func(*batch, []byte) (key, error)) ([]key, error) {
	if len(texts)/step > rowsMax {
		return nil, errTooManyKeys
	}
	b.keys = b.keys[:0]
	for i := 0; i < len(texts); i += step {
		k, err := read(b, texts[i])
		if err != nil {
			return nil, err
		}
		b.keys = append(b.keys, k)
	}
	return b.keys, nil
}

// readPairs does the same as readKeys, and parses the last text of each group as a number.
func (b *batch) readPairs(texts [][]byte, step int, read func(*batch, []byte) (key, error)) (keys []key, values []int64, err error) {
	if keys, err = b.readKeys(texts, step, read); err == nil {
		values, err = b.readValues(texts, step)
	}
	return keys, values, err
}

// readValues parses the last text of each group of step texts as a number.
func (b *batch) readValues(texts [][]byte, step int) ([]int64, error) {
	b.values = b.values[:0]
	for i := step - 1; i < len(texts); i += step {
		n, ok := resp.ParseInt(texts[i])
		if !ok {
			return nil, resp.ErrNotInteger
		}
		b.values = append(b.values, n)
	}
	return b.values, nil
}

// idIn parses an id. space is Names of the id's keyspace. If the number of a text is not in memory, it
// returns the text.
func (b *batch) idIn(space string, text []byte) (id uint64, late *names.Text, ok bool) {
	if space == "" {
		id, ok = parseID(text)
		return id, nil, ok
	}
	if !names.Valid(text) {
		return 0, nil, false
	}
	id, late = b.texts.Number(b.conn.server.node().names, space, text)
	return id, late, true
}

// appendID appends the id with an index in an answer.
func appendID(dst []byte, shown names.Shown, i int, id uint64) []byte {
	if shown == nil {
		return resp.AppendBulkUint(dst, id)
	}
	return resp.AppendBulk(dst, shown[i])
}

// textKey parses a key of a keyspace whose ids are texts. An id may contain colons, so the key names a
// column only if its last part is a column.
func (b *batch) textKey(t *table, text, rest []byte) (key, error) {
	k, id := key{table: t, column: wholeRow}, rest
	if of, column, ok := t.cutColumn(rest); ok {
		id, k.column = of, column
	}
	if of, ok := bytes.CutSuffix(rest, []byte(membersSuffix)); ok {
		if of, column, ok := t.cutColumn(of); ok {
			id, k.column, k.set = of, column, true
		}
	}
	var ok bool
	if k.id, k.late, ok = b.idIn(t.ks.Names, id); !ok {
		return key{}, resp.ArgumentError(fmt.Sprintf("'%s': id: %s", resp.Shown(text), names.Rule))
	}
	return k, nil
}

// cutColumn cuts the name of a column off the end of a text.
func (t *table) cutColumn(text []byte) (rest []byte, column int, ok bool) {
	at := bytes.LastIndexByte(text, ':')
	if at < 0 {
		return text, wholeRow, false
	}
	column = t.ks.ColumnOf(text[at+1:])
	return text[:at], column, column >= 0
}

// lacksColumn returns why a text key, which should name a column, names a whole row: what is behind
// its last colon is no column, or not yet one on this node.
func (k *key) lacksColumn(text []byte) error {
	rest := text[len(k.table.ks.Name)+1:]
	if at := bytes.LastIndexByte(rest, ':'); k.table.ks.Names != "" && k.column == wholeRow && at >= 0 {
		_, err := k.table.field(rest[at+1:])
		return err
	}
	return nil
}
