package column

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Each field of Settings has a Setting, a field in Column, and its own name, text and JSON. Each
// function treats it like the other fields.
func TestEachSettingIsWhole(t *testing.T) {
	fields := reflect.TypeFor[Settings[int64]]()
	if fields.NumField() != int(Count) || len(All()) != int(Count) {
		t.Fatalf("%d fields, %d settings", fields.NumField(), Count)
	}
	for i, which := range All() {
		tag, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		if which.String() == "" || which.Effect() == "" || texts[which].sign == "" || tag != which.String()+"s" {
			t.Errorf("setting %d has the field %q and the texts %+v", i, tag, texts[which])
		}
		var c Column
		value := int64(10 + i)
		if c.Name = "like"; reflect.TypeOf(c).NumField() != 1+2*int(Count) {
			t.Errorf("a column has %d fields", reflect.TypeOf(c).NumField())
		}
		c.Set(which, &value)
		text, err := json.Marshal(c)
		if want := `{"name":"like","` + which.String() + `":1`; err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s, %v, want %s…", text, err, want)
		}
		names, changes := Changes([]Column{c, {Name: "view"}})
		made := After(Settings[int64]{}, changes)
		if is, has := made.Get(which, "like"); !has || is != value || len(names) != 2 {
			t.Errorf("%s is %d, %v of %q", which, is, has, names)
		}
		if back := Columns(names, made); !reflect.DeepEqual(back, []Column{c, {Name: "view"}}) {
			t.Errorf("%s: the columns %+v", which, back)
		}
		switch {
		case Equal(made, Settings[int64]{}), !Equal(made, made):
			t.Errorf("%s is not compared", which)
		case Has(Settings[int64]{}, made, "like"), !Has(made, made, "like"), !Has(Settings[int64]{}, made, "view"):
			t.Errorf("%s is not compared by column", which)
		case made.Check([]string{"view"}) == nil, made.Check(names) != nil:
			t.Errorf("%s of an unknown column", which)
		case Text("like", made) == "like", Text("view", made) != "view":
			t.Errorf("%s is shown as %s and %s", which, Text("like", made), Text("view", made))
		case !Equal(After(made, Removed("like")), Settings[int64]{}):
			t.Errorf("%s of a removed column stays", which)
		case reflect.ValueOf(After(made, Removed("like"))).Field(i).Len() != 0 || !reflect.ValueOf(After(made, Removed("like"))).Field(i).IsNil():
			t.Errorf("%s leaves an empty map, which has another JSON", which)
		}
		c.Set(which, nil)
		if _, changes := Changes([]Column{c}); !Equal(After(made, changes), Settings[int64]{}) {
			t.Errorf("%s is not removed", which)
		}
		if text, err := json.Marshal(c); err != nil || string(text) != `{"name":"like","`+which.String()+`":null}` {
			t.Errorf("%s, %v", text, err)
		}
	}
	if text, err := json.Marshal(Named("a", `b"`)); err != nil || string(text) != `["a","b\""]` {
		t.Errorf("%s, %v", text, err)
	}
}

// The increments of a column sum unless one of its settings does not let them.
func TestSums(t *testing.T) {
	for _, which := range All() {
		var of Settings[int64]
		of.Put(which, "like", 1)
		was := texts[which].sums
		for _, sums := range []bool{true, false} {
			texts[which].sums = sums
			if of.Sums("like") != sums || !of.Sums("view") {
				t.Errorf("%s, which sums: %v: %v, %v", which, sums, of.Sums("like"), of.Sums("view"))
			}
		}
		texts[which].sums = was
	}
}

// After does not change its argument, because views of the catalog share it.
func TestAfterLeavesTheFormer(t *testing.T) {
	was := Settings[int64]{Floors: map[string]int64{"a": 1}}
	two := int64(2)
	now := After(was, Settings[*int64]{Floors: map[string]*int64{"b": &two, "a": nil}})
	if len(was.Floors) != 1 || was.Floors["a"] != 1 || len(now.Floors) != 1 || now.Floors["b"] != 2 {
		t.Errorf("%v became %v", was, now)
	}
}
