package bulk

import (
	"errors"
	"strings"
	"testing"

	"github.com/countd/countd/client"
)

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, glob, key string
		matches            bool
		id                 uint64
		column             string
	}{
		{"like:{id}=posts:like", "like:*", "like:12", true, 12, "like"},
		{"like:{id}=posts:like", "like:*", "like:12:x", false, 0, ""},
		{"like:{id}=posts:like", "like:*", "xlike:12", false, 0, ""},
		{"post:{id}:{column}=posts", "post:*:*", "post:7:likes", true, 7, "likes"},
		{"{column}/{id}=posts", "*/*", "a/b/18446744073709551615", true, 1<<64 - 1, "a/b"},
		{"post:{id}=posts", "post:*", "post:0", true, 0, ""},
		{"p[*]{id}?=k=users:posts", `p\[\*\]*\?=k`, "p[*]5?=k", true, 5, "posts"},
		{"a.b{id}=posts:like", "a.b*", "aXb5", false, 0, ""},
	} {
		p, err := ParsePattern(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		id, column, ok, err := p.match(test.key)
		if p.glob != test.glob || ok != test.matches || err != nil || id != client.Number(test.id) || column != test.column {
			t.Errorf("%s: glob %s; %q is %s, %q, %v, %v", test.pattern, p.glob, test.key, id, column, ok, err)
		}
	}
	p, _ := ParsePattern("post:{id}:{column}=posts")
	if _, column, ok, err := p.match("post:x:likes"); !ok || err == nil || column != "likes" || p.hasID("post:x:likes") {
		t.Errorf("an id that is no number: %q, %v, %v", column, ok, err)
	}
	p.Of(client.Keyspace{IDs: "text"})
	if id, column, ok, err := p.match("post:x:likes"); !ok || err != nil || id.String() != "x" || column != "likes" || !p.hasID("post:x:likes") {
		t.Errorf("a text: %s, %q, %v, %v", id, column, ok, err)
	}
	p, _ = ParsePattern("x{id}=posts:like")
	if _, _, ok, err := p.match("x\n5"); !ok || err == nil {
		t.Errorf("an id with a line end: %v, %v", ok, err)
	}
	p, _ = ParsePattern("post:{id}=posts")
	if _, _, ok, err := p.match("post:18446744073709551616"); !ok || err == nil {
		t.Errorf("an id beyond 64 bits: %v, %v", ok, err)
	}
}

func TestBadPatterns(t *testing.T) {
	for _, text := range []string{"", "post:{id}", "post=posts", "{id}{id}=posts:like", "{id}:{id}=posts:like", "{id}{column}=posts", "{column}{id}=posts",
		"{id}:{column}:{column}=posts", "{id}=", "{id}=:like", "{id}=posts:", "{id}:{column}=posts:like"} {
		if _, err := ParsePattern(text); !errors.Is(err, errBadPattern) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A pattern matches the key that results if {id} and {column} are replaced by values.
func FuzzPattern(f *testing.F) {
	f.Add("post:{id}:{column}=posts")
	f.Add("[{id}*\\=users:posts")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePattern(text)
		if err != nil {
			return
		}
		key := strings.NewReplacer("{id}", "42", "{column}", "c").Replace(text[:strings.LastIndexByte(text, '=')])
		id, column, ok, err := p.match(key)
		unclear := p.column > 0 || strings.ContainsAny(text, "0123456789") // then the key may also match with another id or column
		if !ok || err == nil && !unclear && (id != client.Number(42) || column != p.Column) {
			t.Fatalf("%q: key %q is %s, %q, %v, %v", text, key, id, column, ok, err)
		}
	})
}

// decodeRedisState accepts only a state that an import could have written.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"version":1,"patterns":["a"],"place":{"pattern":1,"cursor":5},"keys":3}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decodeRedisState(text)
		if err != nil {
			if !errors.Is(err, ErrBadRedisState) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if s.Place.Pattern < 0 || s.Place.Pattern > len(s.Patterns) || s.Keys < 0 || s.Bad < 0 {
			t.Fatalf("state %+v", s)
		}
	})
}
