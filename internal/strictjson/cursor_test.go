package strictjson

import (
	"encoding/json"
	"testing"
)

// FuzzSkip: Skip accepts the same texts as encoding/json, up to skipDepthMax.
func FuzzSkip(f *testing.F) {
	for _, text := range []string{`{"a":[1,-0.5e+7,"\u00e9\ud83d\ude00",true,false,null,{}]}`, `01`, `1.`, `-`, `1e`, `tru`, `nul`, `[1,]`, `{"a"}`, `{"a":1,}`, "\"\x01\"", `"\ud800"`, ` 0 `, ``} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var c Cursor
		c.Reset(text)
		raw := c.Skip()
		c.End()
		if c.Err == nil && (!json.Valid(text) || !json.Valid(raw)) {
			t.Fatalf("%q was accepted", text)
		}
		var v any
		if c.Err != nil && len(text) < skipDepthMax && json.Unmarshal(text, &v) == nil {
			// Ignore texts in which encoding/json replaces invalid surrogates and bytes, which the
			// cursor refuses.
			if again, err := json.Marshal(v); err == nil && !containsReplacement(again) {
				t.Fatalf("%q was refused: %v", text, c.Err)
			}
		}
	})
}

func containsReplacement(text []byte) bool {
	for _, r := range string(text) {
		if r == '\uFFFD' {
			return true
		}
	}
	return false
}
