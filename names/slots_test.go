package names

import (
	"testing"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/shard"
)

// Each text has its slot, whatever escapes come before and after it, and Reset forgets all of them.
func TestSlots(t *testing.T) {
	var s Slots
	for _, text := range []string{`"\u0061"`, `"\u0062\n"`, `7`, `"é"`} {
		var c strictjson.Cursor
		c.Reset([]byte(text))
		if number, problem := s.Read(&c, "", 0); text != "7" && problem == "" || text == "7" && number != 7 {
			t.Errorf("%s in a numeric space: %d, %s", text, number, problem)
		}
	}
	s.Names = New(nowhere{})
	var c strictjson.Cursor
	c.Reset([]byte(`"\u0061" "\u0062\n" 7 "é" "" 1.5 -1 01 18446744073709551616 {}`))
	for slot, want := range []string{"a", "b\n", "7", "é"} {
		if number, problem := s.Read(&c, "x@ids", slot); number != 0 || problem != "" || string(s.Text(slot)) != want {
			t.Errorf("%q is read as %d, %q, %s", want, number, s.Text(slot), problem)
		}
	}
	if got := string(s.Append(s.Append(s.Append(nil, 0, 0), 1, 0), 9, 5)); got != `"a""b\n""5"` || s.Complete() {
		t.Errorf("appended %s", got)
	}
	if _, problem := s.Read(&c, "x@ids", 4); problem != Rule {
		t.Errorf("an empty text: %q", problem)
	}
	for _, bad := range []string{"1.5", "-1", "01", "18446744073709551616", "{}", "null"} {
		c.Reset([]byte(bad))
		if _, problem := s.Read(&c, "x@ids", 4); problem != Rule {
			t.Errorf("%s: %q", bad, problem)
		}
	}
	s.Reset()
	if s.Text(0) != nil || !s.Complete() || cap(s.texts) == 0 || s.texts[:1][0] != nil {
		t.Errorf("left %+v", s)
	}
	s.Keep(slotsKept+1, nil)
	if s.Reset(); cap(s.texts) > slotsKept {
		t.Errorf("%d slots are kept", cap(s.texts))
	}
}

// nowhere is a node without keyspaces.
type nowhere struct{ Node }

func (nowhere) Keyspace(string) *shard.Keyspace { return nil }
