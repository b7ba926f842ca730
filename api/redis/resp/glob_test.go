package resp

import (
	"bytes"
	"testing"
)

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"*", "", true}, {"", "", true}, {"", "a", false}, {"a*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "ab", false}, {"a**c", "abbc", true},
		{"*b*b*", "abab", true}, {"?b", "ab", true}, {"?b", "b", false}, {"[a-c]x", "bx", true}, {"[c-a]x", "bx", true}, {"[^a-c]x", "bx", false}, {"[^a-c]x", "dx", true},
		{"[ab", "a", true}, {"[ab", "c", false}, {`\*`, "*", true}, {`\*`, "a", false}, {`[\]]`, "]", true}, {"posts:*:like", "posts:12:like", true}, {"posts:*:like", "posts:12:view", false},
		{`a\`, `a\`, true}, {"[", "[", false}, {"*[a]", "bba", true},
	} {
		if got := MatchGlob(test.pattern, []byte(test.text)); got != test.want {
			t.Errorf("%q of %q: %v", test.text, test.pattern, got)
		}
	}
}

// MatchGlob never panics, and a text matches a pattern that quotes all its bytes.
func FuzzGlob(f *testing.F) {
	f.Add("a*[b-c]?\\", []byte("abc"))
	f.Add("***[^", []byte("*"))
	f.Fuzz(func(t *testing.T, pattern string, text []byte) {
		if len(pattern) > 100 || len(text) > 100 {
			return
		}
		MatchGlob(pattern, text)
		var quoted []byte
		for _, c := range text {
			quoted = append(quoted, '\\', c)
		}
		if !MatchGlob(string(quoted), text) || !MatchGlob("*"+string(quoted)+"*", bytes.Clone(text)) {
			t.Fatalf("%q is not of %q", text, quoted)
		}
	})
}
