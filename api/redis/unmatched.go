package redis

import (
	"errors"
	"fmt"

	"github.com/countd/countd/shard"
)

// patternJudgedMax bounds the patterns that keysCanMatch checks: its time grows with the
// square of their length.
const patternJudgedMax = 256

// refusedMatch refuses a SCAN whose pattern no key can ever match, and reports whether it
// did: the client would take an empty reply for a keyspace without rows. A name that this
// node does not know may have been created by another node just now.
func (c *conn) refusedMatch(q *scanCall) bool {
	b := c.batch
	err := c.checkMatch(q)
	_, unknown := errors.AsType[nameError](err)
	if unknown && !b.looked {
		b.lookUp()
		err = c.checkMatch(q)
	}
	switch {
	case err == nil:
		return false
	case unknown && b.lookErr != nil:
		c.out.buf = b.appendFailure(c.out.buf, b.lookErr)
	default:
		c.refuse(err.Error())
	}
	return true
}

// checkMatch returns an error if no key of the keyspaces known here can match.
func (c *conn) checkMatch(q *scanCall) error {
	if !q.matches {
		return nil
	}
	all := c.server.node().Keyspaces()
	switch {
	case len(all) == 0:
		return errNoKeyspaces
	case q.keyspace != "" && !isCounters(c.server.node().Keyspace(q.keyspace)):
		return c.batch.noKeyspace([]byte(q.keyspace))
	case len(q.match) > patternJudgedMax || q.kind != "hash" && q.kind != "string":
		return nil
	}
	for _, ks := range all {
		if isCounters(ks) && keysCanMatch(q.match, ks, q.kind == "string") {
			return nil
		}
	}
	form := "{keyspace}:{id}"
	if q.kind == "string" {
		form = "{keyspace}:{id}:{column}"
	}
	return nameError(fmt.Sprintf("no key of type %s can match '%s': keys are %s", q.kind, shown([]byte(q.match)), form))
}

// keysCanMatch reports whether the pattern can match a key of a keyspace: the key of a
// row or, with counts, of a count.
func keysCanMatch(pattern string, ks *shard.Keyspace, counts bool) bool {
	row := newGlobStates(pattern).word(ks.Name + ":").id()
	if !counts {
		return row.matches()
	}
	row = row.word(":")
	for _, column := range ks.Columns {
		if row.word(column).matches() {
			return true
		}
	}
	return false
}

// globStates is the set of positions in a pattern that matchGlob may have reached after a
// text.
type globStates struct {
	pattern string
	at      []bool // indexed by byte of the pattern, and its end
}

func newGlobStates(pattern string) globStates {
	s := globStates{pattern, make([]bool, len(pattern)+1)}
	s.at[0] = true
	return s.pastStars()
}

// pastStars adds the positions after each reached *, which may match nothing.
func (s globStates) pastStars() globStates {
	for p := range len(s.pattern) {
		if s.at[p] && s.pattern[p] == '*' {
			s.at[p+1] = true
		}
	}
	return s
}

// oneOf returns the states after one of the bytes.
func (s globStates) oneOf(bytes string) globStates {
	next := globStates{s.pattern, make([]bool, len(s.at))}
	for p := range len(s.pattern) {
		for i := 0; s.at[p] && i < len(bytes); i++ {
			if s.pattern[p] == '*' {
				next.at[p] = true
			} else if n, ok := matchOne(s.pattern[p:], bytes[i]); ok {
				next.at[p+n] = true
			}
		}
	}
	return next.pastStars()
}

// word returns the states after a text.
func (s globStates) word(text string) globStates {
	for i := range len(text) {
		s = s.oneOf(text[i : i+1])
	}
	return s
}

// id returns the states after 1 to 20 digits, as ids have.
func (s globStates) id() globStates {
	const digitsMax = 20
	all := globStates{s.pattern, make([]bool, len(s.at))}
	for range digitsMax {
		s = s.oneOf("0123456789")
		for p, there := range s.at {
			all.at[p] = all.at[p] || there
		}
	}
	return all
}

// matches reports whether the whole pattern matches the text.
func (s globStates) matches() bool { return s.at[len(s.pattern)] }
