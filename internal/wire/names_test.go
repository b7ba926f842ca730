package wire

import (
	"strings"
	"testing"
)

// TestForms tries each byte as the first and as a later byte of a name, and tries names at the
// bounds of the length.
func TestForms(t *testing.T) {
	const lower, upper, digits = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
	for _, c := range []struct {
		form        string
		is          func(string, int) bool
		first, rest string
	}{
		{"word", IsWord[string], lower, lower + digits + "_"},
		{"slug", IsSlug, lower + digits, lower + digits + "_-"},
		{"label", IsLabel[string], lower + upper + digits + "._-", lower + upper + digits + "._-"},
	} {
		for b := range 256 {
			ch := string([]byte{byte(b)})
			if got, want := c.is(ch, 2), strings.Contains(c.first, ch); got != want {
				t.Errorf("%q as the first byte of a %s: %v, want %v", ch, c.form, got, want)
			}
			if got, want := c.is("a"+ch, 2), strings.Contains(c.rest, ch); got != want {
				t.Errorf("%q as a later byte of a %s: %v, want %v", ch, c.form, got, want)
			}
		}
		if c.is("", 2) || !c.is("ab", 2) || c.is("abc", 2) {
			t.Errorf("a %s has 1 to bytesMax bytes", c.form)
		}
	}
}
