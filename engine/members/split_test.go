package members

import (
	"errors"
	"slices"
	"testing"
)

// A new replica may replay two Splits. The second one replaces the staged parts of the first, and a
// replay of the first still returns the same states. Trim removes only the parts of a Split that no
// snapshot can replay.
func TestSecondSplit(t *testing.T) {
	d := diskOf(t)
	d.give(joins(12, 4)...)
	split := func(index uint64, parts int, of uint64) ([]State, State) {
		t.Helper()
		at := d.at
		states, err := d.group.Split(at, index, parts, func(row uint64) int { return int(row / of % uint64(parts)) })
		if err != nil {
			t.Fatal(err)
		}
		d.at = states[0]
		return states, at
	}
	first, began := split(2, 3, 1)
	second, _ := split(3, 2, 3)
	for i, want := range []uint64{16, 16, 16} {
		if first[i].Pairs != want {
			t.Errorf("part %d has %d pairs, want %d", i, first[i].Pairs, want)
		}
	}
	d.at = began
	firstAgain, _ := split(2, 3, 1)
	secondAgain, _ := split(3, 2, 3)
	if !slices.Equal(firstAgain, first) || !slices.Equal(secondAgain, second) {
		t.Errorf("replays: %+v, %+v, want %+v, %+v", firstAgain, secondAgain, first, second)
	}
	child := d.open(2)
	defer child.Close()
	adopt := func(index uint64, want error) {
		t.Helper()
		s, err := child.AdoptPart(1, index, 1, 1)
		if !errors.Is(err, want) || err == nil && (s.Pairs != second[1].Pairs || s.Index != 1) {
			t.Errorf("the part of entry %d: %+v, %v, want %v", index, s, err, want)
		}
		if err := errors.Join(child.Verify(), d.group.Verify()); err != nil {
			t.Error(err)
		}
	}
	adopt(2, ErrNotStaged)
	adopt(3, nil)
	if err := d.group.Trim(2); err != nil {
		t.Fatal(err)
	}
	adopt(3, nil)
	if err := d.group.Trim(3); err != nil {
		t.Fatal(err)
	}
	adopt(3, ErrNotStaged)
}

// A deleted row that still has pairs stays deleted in its part.
func TestSplitOfADeletedRow(t *testing.T) {
	d := diskOf(t)
	d.give(joins(2, 2*purgedAtOnce)...)
	d.give(op{kind: 'd', pair: Pair{Row: 1}})
	states, err := d.group.Split(d.at, 3, 2, func(row uint64) int { return int(row) })
	if err != nil || d.group.Dying() != 0 || states[1].Pairs != purgedAtOnce {
		t.Fatalf("%d rows are dying, %+v, %v", d.group.Dying(), states, err)
	}
	child := d.open(2)
	defer child.Close()
	if _, err := child.AdoptPart(1, 3, 1, 1); err != nil || child.Dying() != 1 {
		t.Fatalf("%d rows are dying, %v", child.Dying(), err)
	}
	if l, err := child.Members(1, 0, Page{Limit: 10}); err != nil || len(l.Entries) > 0 {
		t.Errorf("a deleted row has members: %v, %v", l.Entries, err)
	}
	if err := errors.Join(child.Verify(), d.group.Verify()); err != nil {
		t.Error(err)
	}
}
