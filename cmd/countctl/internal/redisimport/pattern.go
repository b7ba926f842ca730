package redisimport

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/countd/countd/client"
)

// Pattern says which keys of Redis are counts, and of what:
//
//	like:{id}=posts:like        a string a post, in column like; or a set, by its size
//	post:{id}:{column}=posts    a string or set a count; the key names the column
//	post:{id}=posts             a hash a post; its fields name the columns
type Pattern struct {
	Text     string
	Keyspace string
	Column   string // of a count whose key does not name it; else ""

	glob   string // for SCAN
	keys   *regexp.Regexp
	loose  *regexp.Regexp // keys, with anything for the id; nil for a pattern of no text
	id     int            // the group of keys that is the id
	column int            // likewise of the column; 0 for none
}

const (
	idMark     = "{id}"
	columnMark = "{column}"
)

// ErrBadPattern is returned for a pattern that names no keys or no place.
var ErrBadPattern = errors.New("want KEYS=KEYSPACE or KEYS=KEYSPACE:COLUMN, with {id} once in KEYS and {column} at most once, something between them, in UTF-8")

// ParsePattern reads a pattern.
func ParsePattern(text string) (*Pattern, error) {
	at := strings.LastIndexByte(text, '=')
	if at < 0 || !utf8.ValidString(text) {
		return nil, fmt.Errorf("pattern %q: %w", text, ErrBadPattern)
	}
	keys := text[:at]
	p := &Pattern{Text: text}
	var named bool
	p.Keyspace, p.Column, named = strings.Cut(text[at+1:], ":")
	byKey := strings.Count(keys, columnMark)
	if strings.Count(keys, idMark) != 1 || byKey > 1 || p.Keyspace == "" || named && (p.Column == "" || byKey > 0) ||
		strings.Contains(keys, idMark+columnMark) || strings.Contains(keys, columnMark+idMark) {
		return nil, fmt.Errorf("pattern %q: %w", text, ErrBadPattern)
	}
	p.compile(keys)
	return p, nil
}

// compile compiles the pattern for SCAN, which is approximate, and as an exact regular
// expression.
func (p *Pattern) compile(keys string) {
	marks := regexp.MustCompile(`\{id\}|\{column\}`)
	var glob, exact, loose strings.Builder
	anyID := anyIDOf(keys)
	exact.WriteString(`\A`)
	loose.WriteString(`\A`)
	from, groups := 0, 0
	for _, at := range append(marks.FindAllStringIndex(keys, -1), []int{len(keys), len(keys)}) {
		literal := keys[from:at[0]]
		glob.WriteString(quoteGlob(literal))
		exact.WriteString(regexp.QuoteMeta(literal))
		loose.WriteString(regexp.QuoteMeta(literal))
		from = at[1]
		if at[0] == at[1] {
			break
		}
		groups++
		glob.WriteByte('*')
		if keys[at[0]:at[1]] == idMark {
			p.id = groups
			exact.WriteString(`([0-9]+)`)
			loose.WriteString(anyID)
		} else {
			p.column = groups
			exact.WriteString(`(.+)`)
			loose.WriteString(`(.+)`)
		}
	}
	exact.WriteString(`\z`)
	loose.WriteString(`\z`)
	p.glob, p.keys = glob.String(), regexp.MustCompile("(?s)"+exact.String())
	if anyID != "" {
		p.loose = regexp.MustCompile("(?s)" + loose.String())
	}
}

// anyIDOf returns an expression for ids that are no numbers: of anything but what parts the id
// from the text after it or, at the end, before it. So like:abc has an id of like:{id}, and
// like:1:by is of another form. It returns "" if a pattern has no such text.
func anyIDOf(keys string) string {
	before, after, _ := strings.Cut(keys, idMark)
	parts := ""
	switch {
	case after != "" && !strings.HasPrefix(after, columnMark):
		r, _ := utf8.DecodeRuneInString(after)
		parts = string(r)
	case before != "" && !strings.HasSuffix(before, columnMark):
		r, _ := utf8.DecodeLastRuneInString(before)
		parts = string(r)
	default:
		return ""
	}
	return `([^` + regexp.QuoteMeta(parts) + `]*)`
}

// quoteGlob escapes text for SCAN.
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

// hashes reports whether the keys are hashes.
func (p *Pattern) hashes() bool { return p.Column == "" && p.column == 0 }

// Types names the types of the keys.
func (p *Pattern) Types() string {
	if p.hashes() {
		return "hash"
	}
	return "string, set or sorted set"
}

// match returns the id in a key and, for a count, the column's name. ok is false for a key
// that does not match. The error is that of an id beyond 64 bits.
func (p *Pattern) match(key string) (id client.ID, column string, ok bool, err error) {
	m := p.keys.FindStringSubmatch(key)
	if m == nil {
		return 0, "", false, nil
	}
	id, err = client.ParseID(m[p.id])
	return id, p.columnIn(m), true, err
}

// badID returns the error of a key that matches but for its id, and the column's name; nil
// for any other key.
func (p *Pattern) badID(key string) (column string, err error) {
	if p.loose == nil {
		return "", nil
	}
	m := p.loose.FindStringSubmatch(key)
	if m == nil {
		return "", nil
	}
	_, err = client.ParseID(m[p.id])
	return p.columnIn(m), err
}

func (p *Pattern) columnIn(match []string) string {
	if p.column > 0 {
		return match[p.column]
	}
	return p.Column
}
