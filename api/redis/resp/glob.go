package resp

// MatchGlob reports whether text matches a Redis pattern: * any bytes, ? any byte, [a-z] a
// byte of a set, [^a-z] a byte outside a set, \ the next byte itself. Its time is at most
// proportional to the product of the lengths.
func MatchGlob(pattern string, text []byte) bool {
	p, t := 0, 0
	star, tried := -1, 0 // index of the last *, and the number of bytes of text that it matches
	for t < len(text) {
		if p < len(pattern) && pattern[p] == '*' {
			star, tried = p, t
			p++
			continue
		}
		if n, ok := matchOne(pattern[p:], text[t]); ok {
			p += n
			t++
			continue
		}
		if star < 0 {
			return false
		}
		tried++
		p, t = star+1, tried
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchOne matches the first element of a pattern against one byte. n is the length of the element.
func matchOne(pattern string, c byte) (n int, ok bool) {
	if pattern == "" {
		return 0, false
	}
	switch pattern[0] {
	case '?':
		return 1, true
	case '[':
		return matchSet(pattern, c)
	case '\\':
		if len(pattern) > 1 {
			return 2, pattern[1] == c
		}
	}
	return 1, pattern[0] == c
}

// matchSet matches a [set]. A set without ] extends to the end.
func matchSet(pattern string, c byte) (n int, ok bool) {
	i := 1
	not := i < len(pattern) && pattern[i] == '^'
	if not {
		i++
	}
	found := false
	for i < len(pattern) && pattern[i] != ']' {
		if pattern[i] == '\\' && i+1 < len(pattern) {
			i++
		}
		low := pattern[i]
		high := low
		if i+2 < len(pattern) && pattern[i+1] == '-' {
			high = pattern[i+2]
			i += 2
		}
		found = found || min(low, high) <= c && c <= max(low, high)
		i++
	}
	return min(i+1, len(pattern)), found != not
}

// Pattern is the pattern of MATCH. The zero Pattern matches every text.
type Pattern struct {
	Text  string
	Given bool
}

// Matches reports whether a text matches.
func (p *Pattern) Matches(text []byte) bool { return !p.Given || MatchGlob(p.Text, text) }

// GlobBytes are the bytes with a special meaning in a pattern.
const GlobBytes = `*?[\`
