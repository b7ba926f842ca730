package names

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// Marks that are written come back. Marks that no shard has are refused.
func TestMarksAreChecked(t *testing.T) {
	for name, test := range map[string]struct {
		marks []mark
		good  bool
	}{
		"none":               {nil, true},
		"one":                {[]mark{{0, 2}}, true},
		"two":                {[]mark{{3, 2}, {markMillis, 100}}, true},
		"of all numbers":     {[]mark{{timeMax, 100}}, true},
		"of a later number":  {[]mark{{3, 101}}, false},
		"of no number":       {[]mark{{3, 1}}, false},
		"two of an hour":     {[]mark{{3, 2}, {4, 3}}, false},
		"two of a number":    {[]mark{{3, 2}, {3 + markMillis, 2}}, false},
		"after the last day": {[]mark{{5, 2}, {timeMax + 1, 3}}, false},
	} {
		p := appendMarks(nil, test.marks)
		got, err := parseMarks(p, 100)
		if test.good && (err != nil || !slices.Equal(got, test.marks)) || !test.good && !errors.Is(err, codec.ErrSnapshot) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if test.good && len(p) > 0 {
			if _, err := parseMarks(p[:len(p)-1], 100); !errors.Is(err, codec.ErrSnapshot) {
				t.Errorf("%s, cut: %v", name, err)
			}
		}
	}
	many := make([]mark, marksMax+1)
	for i := range many {
		many[i] = mark{int64(i) * markMillis, uint64(i) + 2}
	}
	if _, err := parseMarks(appendMarks(nil, many[:marksMax]), NumberMax); err != nil {
		t.Error(err)
	}
	if _, err := parseMarks(appendMarks(nil, many), NumberMax); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("too many: %v", err)
	}
}

// However many marks there were, each one that is left is true, the youngest are all there, and the
// digest is that of marks which are loaded.
func TestMarksAreBounded(t *testing.T) {
	var m marks
	const hours = 3*marksMax + 7
	for hour := range int64(hours) {
		m.add(mark{hour*markMillis + 5, uint64(hour) + 2})
		if n := len(m.mu.all); n > marksMax {
			t.Fatalf("%d marks", n)
		}
	}
	for hour := range int64(hours) {
		young := m.young(hour*markMillis + 5)
		if young > uint64(hour)+2 || hour >= hours-marksMax/2 && young != uint64(hour)+2 || hour > hours/2 && young < uint64(hour)/2 {
			t.Fatalf("in hour %d the next number was %d, and %d is young", hour, hour+2, young)
		}
	}
	all, err := parseMarks(appendMarks(nil, m.copy()), hours+2)
	if err != nil {
		t.Fatal(err)
	}
	var loaded marks
	loaded.load(all)
	if loaded.digest(9) != m.digest(9) || !slices.Equal(loaded.mu.all, m.mu.all) {
		t.Error("the loaded marks are others")
	}
}

// An Assign needs a clock before it in the entry.
func TestAssignNeedsAClock(t *testing.T) {
	op := Op{Kind: Assign, Text: "a"}
	c := New(spill.Place{}).current.Load()
	if _, err := c.Decode(nil, op.appendTo(nil), false); !errors.Is(err, codec.ErrEntry) {
		t.Errorf("without a clock: %v", err)
	}
	if _, err := c.Decode(nil, op.appendTo(nil), true); err != nil {
		t.Error(err)
	}
}

// gift is a number that a model gave, or a restore put.
type gift struct {
	at   int64
	next uint64
}

// wantYoung returns what the marks of all gifts in order say: the last gift of each hour counts, and
// one with an earlier time than another before it counts as that.
func wantYoung(gifts []gift, after int64) uint64 {
	young, at, next := uint64(1), int64(0), uint64(1)
	byHour := map[int64]gift{}
	for _, g := range gifts {
		if g.next > next {
			at, next = max(at, g.at), g.next
			byHour[at/markMillis] = gift{at, next}
		}
	}
	for _, g := range byHour {
		if g.at <= after {
			young = max(young, g.next)
		}
	}
	return young
}

// Marks in any order of times equal a naive model of all of them.
func TestMarksEqualAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m marks
		var gifts []gift
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				g := gift{rapid.Int64Range(1, 40*markMillis).Draw(t, "at"), rapid.Uint64Range(2, 200).Draw(t, "next")}
				gifts = append(gifts, g)
				m.add(mark(g))
			},
			"": func(t *rapid.T) {
				after := rapid.Int64Range(0, 41*markMillis).Draw(t, "after")
				if got, want := m.young(after), wantYoung(gifts, after); got != want {
					t.Fatalf("after %d, number %d is young, want %d, of %v", after, got, want, gifts)
				}
			},
		})
	})
}
