package bulk

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/countd/countd/client"
)

// Pattern describes keys of Redis that are counts, and the rows and columns that they count:
//
//	like:{id}=posts:like        each key is one count of column like: a string, or the size of a set
//	post:{id}:{column}=posts    each key is one count, as above; the key names the column
//	post:{id}=posts             each key is a hash with all counts of a post; its fields name the columns
type Pattern struct {
	Text     string
	Keyspace string
	Column   string // column of the count; "" if the key or the fields of a hash name it

	glob   string          // glob pattern for SCAN
	keys   *regexp.Regexp  // matches a key of the pattern, even if the text in the place of the id is no number
	id     int             // number of the group in keys that matches the id
	column int             // number of the group in keys that matches the column; 0 if there is none
	ids    client.Keyspace // decides which ids are good
}

// Of makes the pattern take the ids of its keyspace. Until then it takes numbers.
func (p *Pattern) Of(keyspace client.Keyspace) { p.ids = keyspace }

const (
	idMark     = "{id}"
	columnMark = "{column}"
)

// errBadPattern is returned for text that is not a pattern.
var errBadPattern = errors.New("want KEYS=KEYSPACE or KEYS=KEYSPACE:COLUMN, with {id} once in KEYS and {column} at most once, something between them, in UTF-8")

// ParsePattern parses a pattern.
func ParsePattern(text string) (*Pattern, error) {
	at := strings.LastIndexByte(text, '=')
	if at < 0 || !utf8.ValidString(text) {
		return nil, fmt.Errorf("pattern %q: %w", text, errBadPattern)
	}
	keys := text[:at]
	p := &Pattern{Text: text}
	var named bool
	p.Keyspace, p.Column, named = strings.Cut(text[at+1:], ":")
	byKey := strings.Count(keys, columnMark)
	if strings.Count(keys, idMark) != 1 || byKey > 1 || p.Keyspace == "" || named && (p.Column == "" || byKey > 0) ||
		strings.Contains(keys, idMark+columnMark) || strings.Contains(keys, columnMark+idMark) {
		return nil, fmt.Errorf("pattern %q: %w", text, errBadPattern)
	}
	p.compile(keys)
	return p, nil
}

// compile sets p.glob and p.keys. SCAN uses p.glob, which may match too many keys. p.keys is exact.
func (p *Pattern) compile(keys string) {
	var glob, exact strings.Builder
	exact.WriteString(`(?s)\A`)
	from, groups := 0, 0
	literal := func(text string) {
		glob.WriteString(quoteGlob(text))
		exact.WriteString(regexp.QuoteMeta(text))
	}
	for _, at := range regexp.MustCompile(`\{id\}|\{column\}`).FindAllStringIndex(keys, -1) {
		literal(keys[from:at[0]])
		from = at[1]
		groups++
		glob.WriteByte('*')
		if keys[at[0]:at[1]] == idMark {
			p.id = groups
			exact.WriteString(`([0-9]+` + badIDsOf(keys) + `)`)
		} else {
			p.column = groups
			exact.WriteString(`(.+)`)
		}
	}
	literal(keys[from:])
	exact.WriteString(`\z`)
	p.glob, p.keys = glob.String(), regexp.MustCompile(exact.String())
}

// badIDsOf returns a part of a regular expression that matches a bad id, which is text instead of a
// number. That text must not contain the character that follows the id in the pattern or, if the id
// is last, the character before it. For example, with the pattern like:{id}, the key like:abc has a
// bad id, but like:1:by does not match. badIDsOf returns "" if the pattern has no such character
// next to the id.
func badIDsOf(keys string) string {
	before, after, _ := strings.Cut(keys, idMark)
	var parts rune
	switch {
	case after != "" && !strings.HasPrefix(after, columnMark):
		parts, _ = utf8.DecodeRuneInString(after)
	case before != "" && !strings.HasSuffix(before, columnMark):
		parts, _ = utf8.DecodeLastRuneInString(before)
	default:
		return ""
	}
	return `|[^` + regexp.QuoteMeta(string(parts)) + `]*`
}

func quoteGlob(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if strings.IndexByte(`*?[]\^-`, text[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

func (p *Pattern) hashes() bool { return p.Column == "" && p.column == 0 }

// Types returns the Redis types of the keys, for messages.
func (p *Pattern) Types() string {
	if p.hashes() {
		return "hash"
	}
	return "string, set or sorted set"
}

// match returns the id in a key and, for a count, the column's name. ok is false for a key
// that does not match. err is set if the keyspace cannot have the id.
func (p *Pattern) match(key string) (id client.ID, column string, ok bool, err error) {
	m := p.keys.FindStringSubmatch(key)
	if m == nil {
		return client.ID{}, "", false, nil
	}
	column = p.Column
	if p.column > 0 {
		column = m[p.column]
	}
	id, err = p.ids.ParseID(m[p.id])
	return id, column, true, err
}

// hasID reports whether a key matches, with an id that its keyspace may have. An id of digits may be too large.
func (p *Pattern) hasID(key string) bool {
	m := p.keys.FindStringSubmatch(key)
	return m != nil && p.ids.IDs != "" || m != nil && m[p.id] != "" && strings.Trim(m[p.id], "0123456789") == ""
}
