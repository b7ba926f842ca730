package propose

import (
	"encoding/base64"
	"errors"
	"slices"
	"testing"

	"github.com/countd/countd/shard/errs"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	many := Token{}
	for i := range uint32(tokenElementsMax) {
		many.At = append(many.At, GroupIndex{i, 1<<64 - 1 - uint64(i)})
	}
	for name, token := range map[string]Token{
		"zero": {}, "empty": {Cluster: 7}, "one": {At: []GroupIndex{{0, 1}}}, "the most groups": many,
		"edges": {Cluster: 1<<32 - 1, At: []GroupIndex{{1<<32 - 1, 1<<64 - 1}, {0, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			text := token.AppendText([]byte("x"))[1:]
			got, err := ParseToken(text)
			if err != nil || got.Cluster != token.Cluster || !slices.Equal(got.At, token.At) {
				t.Errorf("%s became %v, %v", text, got, err)
			}
			for _, e := range token.At {
				if got.Index(e.Group) != e.Index {
					t.Errorf("group %d at %d, want %d", e.Group, got.Index(e.Group), e.Index)
				}
			}
		})
	}
	text := func(raw string) string { return base64.RawURLEncoding.EncodeToString([]byte(raw)) }
	for name, bad := range map[string]string{
		"empty":                  "",
		"version 2":              text("\x02abcd\x05\x07"),
		"version alone":          text("\x01"),
		"cut cluster":            text("\x01abc"),
		"no index":               text("\x01abcd\x05"),
		"cut index":              text("\x01abcd\x05\x80"),
		"index 0":                text("\x01abcd\x05\x00"),
		"group twice, index 0":   text("\x01abcd\x05\x00\x05\x00"),
		"group twice":            text("\x01abcd\x05\x07\x05\x08"),
		"group of 33 bits":       text("\x01abcd\x80\x80\x80\x80\x10\x01"),
		"index of 65 bits":       text("\x01abcd\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
		"longer than need be":    text("\x01abcd\x85\x00\x01"),
		"padding":                text("\x01abcd\x05\x07\x06\x08\x09") + "==",
		"line break":             text("\x01abcd\x05\x07") + "\n",
		"bits behind the end":    "AWFiY2R",
		"standard, not URL form": "AmFiY2QF/wc",
		"too many groups":        string(Token{At: append(slices.Clone(many.At), GroupIndex{5000, 1})}.AppendText(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ParseToken([]byte(bad)); !errors.Is(err, errs.ErrBadToken) {
				t.Errorf("%q was taken for %v, %v", bad, got, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Token{Cluster: 9, At: []GroupIndex{{1, 2}, {1<<32 - 1, 1<<64 - 1}}}.AppendText(nil))
	f.Add([]byte("Ag"))
	f.Fuzz(func(t *testing.T, text []byte) {
		token, err := ParseToken(text)
		if err != nil {
			if !errors.Is(err, errs.ErrBadToken) || token.At != nil {
				t.Fatalf("%v, %v", token, err)
			}
			return
		}
		if again := token.AppendText(nil); string(again) != string(text) {
			t.Fatalf("%q was taken for %q", text, again)
		}
		for i, e := range token.At {
			if e.Index == 0 || token.Index(e.Group) != e.Index {
				t.Fatalf("element %d of %v", i, token)
			}
		}
	})
}
