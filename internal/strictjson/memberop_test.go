package strictjson

import (
	"testing"
)

// read parses an object with the fields of Member and the field "id".
func read(text string) (m Member, id uint64, err error) {
	var c Cursor
	c.Reset([]byte(text))
	c.Begin('{')
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); {
		case string(key) == "id":
			id, _ = c.ID()
		case m.Field(&c, key, func(field string) string { return "ops[3]." + field }):
		default:
			c.Fail(string(key), "no such field")
		}
	}
	c.End()
	return m, id, c.Err
}

func TestMember(t *testing.T) {
	m, id, err := read(`{"set": false, "id":"5", "member":"18446744073709551615" ,"column": "like"}`)
	if err != nil || id != 5 || m.ID != 1<<64-1 || m.Set || m.Missing(true) != "" || !m.Given() || m.ColumnAt != 68 {
		t.Errorf("got %+v, %d, %v", m, id, err)
	}
	m, _, err = read(`{"member":7,"set":true}`)
	if err != nil || m.ID != 7 || !m.Set || m.Missing(false) != "" || m.Missing(true) != "column" {
		t.Errorf("got %+v, %v", m, err)
	}
	if m, _, err = read(`{"id":1}`); err != nil || m.Given() {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestMemberFaults(t *testing.T) {
	for text, want := range map[string]string{
		`{"member":"x"}`:             "ops[3].member: not an unsigned 64-bit integer",
		`{"member":-1}`:              "ops[3].member: not an unsigned 64-bit integer",
		`{"member":7,"member":7}`:    "ops[3].member: given twice",
		`{"column":7}`:               "ops[3].column: not a string",
		`{"column":"a","column":""}`: "ops[3].column: given twice",
		`{"set":true,"set":true}`:    "ops[3].set: given twice",
		`{"set":tru}`:                "ops[3].set: neither true nor false",
		`{"set":{"like":1}}`:         "set: no such field",
		`{"set":1}`:                  "set: no such field",
	} {
		if _, _, err := read(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestMissing(t *testing.T) {
	for text, want := range map[string]string{`{"column":"a"}`: "member", `{"column":"a","member":1}`: "set", `{"member":1,"set":true}`: "column"} {
		if m, _, err := read(text); err != nil || m.Missing(true) != want {
			t.Errorf("%s: %q is missing, want %q", text, m.Missing(true), want)
		}
	}
}

func TestMemberAllocatesNothing(t *testing.T) {
	text, i := []byte(`{"column":"like","member":"7","set":true}`), 3
	var c Cursor
	n := testing.AllocsPerRun(100, func() {
		var m Member
		c.Reset(text)
		c.Begin('{')
		for n := 0; c.Next(n, '}'); n++ {
			m.Field(&c, c.Key(), func(field string) string { return field + string(rune(i)) })
		}
		if m.Missing(true) != "" || c.Err != nil {
			t.Fatal(c.Err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}
