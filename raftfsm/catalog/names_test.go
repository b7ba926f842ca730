package catalog

import (
	"strings"
	"testing"
)

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "likes_2024": true, "z" + strings.Repeat("_", NameBytesMax-1): true,
		"": false, "1a": false, "_a": false, "A": false, "aB": false, "a-b": false, "a b": false, "ä": false, "a\n": false, "a\x00": false,
		strings.Repeat("a", NameBytesMax+1): false,
	} {
		if ValidName(name) != want || ValidName([]byte(name)) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}
