package strictjson

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestMeaning(t *testing.T) {
	same := [][]string{
		{`{"ops":[{"id":"1","add":{"like":1,"view":-2}},{"id":2,"add":{"like":0}}],"want":"none"}`,
			` { "want" : "none", "ops" : [ {"add":{"view":-2,"like":1},"id":1} , {"id":"2","add":{"\u006cike":-0}} ] } `,
			"{\"ops\":[{\"id\":1,\n\t\"add\":{\"view\":-2,\"like\":1}},{\"add\":{\"like\":0},\"id\":2}],\r\n\"want\":\"none\"}"},
		{``, `{}`, ` { } `},
		{`{"columns":["a","b"]}`, `{"columns": ["a", "b"]}`},
		{`{"a":true,"b":null}`, `{"b":null , "a":true}`},
	}
	different := []string{
		`{"ops":[{"id":1,"add":{"like":1}},{"id":2,"add":{"like":1}}]}`,
		`{"ops":[{"id":2,"add":{"like":1}},{"id":1,"add":{"like":1}}]}`,
		`{"ops":[{"id":1,"add":{"like":1}}]}`,
		`{"ops":[{"id":1,"add":{"like":2}}]}`,
		`{"ops":[{"id":1,"add":{"like":-1}}]}`,
		`{"ops":[{"id":1,"add":{"view":1}}]}`,
		`{"ops":[{"id":1,"set":{"like":1}}]}`,
		`{"ops":[{"id":1,"add":{"like":1}}],"want":"none"}`,
		`{"ops":[{"id":1,"add":{"like":1,"view":1}}]}`,
		`{"ops":[{"id":1,"add":{"like":1},"floor":0}]}`,
		`{"columns":["b","a"]}`, `{"columns":["ab"]}`, `{"columns":[["a","b"]]}`, `{"columns":[]}`,
		`{"a":"01"}`, `{"a":1}`, `{"a":"true"}`, `{"a":true}`, `{"a":{"b":{}}}`, `{"b":{"a":{}}}`, `{"b":{},"a":{}}`,
	}
	c := new(Cursor)
	seen := map[uint64]string{}
	for _, group := range same {
		want := c.Meaning([]byte(group[0]))
		seen[want] = group[0]
		for _, body := range group {
			if got := c.Meaning([]byte(body)); got != want || c.Err != nil {
				t.Errorf("%s is not %s: %v", body, group[0], c.Err)
			}
		}
	}
	for _, body := range different {
		sum := c.Meaning([]byte(body))
		if other, ok := seen[sum]; ok {
			t.Errorf("%s means %s", body, other)
		}
		seen[sum] = body
	}
}

// Shards store idempotency keys with these hashes. After an upgrade to a program with other hashes,
// retries of earlier requests would be refused.
func TestMeaningNeverChanges(t *testing.T) {
	body := `{"ops":[{"id":"1","add":{"like":1,"view":-2},"floor":0}],"want":"none","b":[true,null]}`
	if got, want := new(Cursor).Meaning([]byte(body)), uint64(0xc6c723938d411d46); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// Rewriting a JSON text in another form keeps its meaning.
func FuzzMeaning(f *testing.F) {
	f.Add([]byte(`{"ops":[{"id":"1","add":{"like":1}}],"want":"none"}`))
	f.Add([]byte(`[[[[[[[[[[`))
	f.Add([]byte(`{"a":[1,{"b":"\ud83d\ude00"}],"c":-0}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c := new(Cursor)
		sum := c.Meaning(body)
		var out bytes.Buffer
		if c.Err != nil || json.Indent(&out, body, " ", "\t") != nil {
			return
		}
		if again := c.Meaning(out.Bytes()); again != sum || c.Err != nil {
			t.Fatalf("%q means %x, and %q %x, %v", body, sum, out.Bytes(), again, c.Err)
		}
	})
}
