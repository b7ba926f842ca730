package propose

import (
	"slices"
	"testing"
)

// queueOf enqueues proposals of these sizes in bytes. Each proposal has an op for each byte.
func queueOf(t *testing.T, u *proposalQueue, sizes ...int) []*Proposal {
	t.Helper()
	var all []*Proposal
	for _, n := range sizes {
		q := &Proposal{section: make([]byte, n), Ops: n}
		if !u.take(q) {
			t.Fatalf("no room for %d", n)
		}
		u.lineOf(q).push(q)
		all = append(all, q)
	}
	return all
}

func sizesOf(batch []*Proposal) []int {
	var sizes []int
	for _, q := range batch {
		sizes = append(sizes, len(q.section))
	}
	return sizes
}

// While both lines wait:
//
//  1. each line fills half of an entry, and the lines take turns to be first in it;
//  2. a line may use the space that the other line leaves;
//  3. a proposal larger than an entry waits only for its line's turn;
//  4. each line is in order.
func TestLinesShareEntries(t *testing.T) {
	const small, large, huge = 1, smallBytesMax + 1, EntryOpsMax + 1
	times := func(n, size int) []int { return slices.Repeat([]int{size}, n) }
	for _, c := range []struct {
		name    string
		waiting []int
		want    [][]int
	}{
		{"small ones alone", times(EntryOpsMax+1, small), [][]int{times(EntryOpsMax, small), {small}}},
		{"large ones alone", times(5, large), [][]int{times(3, large), times(2, large)}},
		{"a small one behind many large ones", append(times(7, large), small), [][]int{
			append([]int{small}, times(3, large)...), times(3, large), {large},
		}},
		{"a large one behind many small ones", append(times(2*EntryOpsMax, small), large), [][]int{
			append(append(times(EntryOpsMax/2, small), large), times(EntryOpsMax/2-large, small)...),
			times(EntryOpsMax, small), times(large, small),
		}},
		{"a huge one behind small ones", append(times(EntryOpsMax+5, small), huge, small), [][]int{
			times(EntryOpsMax, small), {huge}, times(6, small),
		}},
		{"huge ones and small ones", []int{huge, huge, small, small}, [][]int{{small, small}, {huge}, {huge}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var u proposalQueue
			queueOf(t, &u, c.waiting...)
			for i, want := range append(c.want, nil) {
				batch := u.next()
				if got := sizesOf(batch); !slices.Equal(got, want) {
					t.Fatalf("entry %d has %d, begins with %v; want %d, %v", i, len(got), got[:min(5, len(got))], len(want), want[:min(5, len(want))])
				}
				for _, q := range batch {
					u.give(q)
				}
			}
			if u.load != (load{}) || u.largeLoad != (load{}) {
				t.Errorf("%+v is counted, %+v of large ones", u.load, u.largeLoad)
			}
		})
	}
}

// Large proposals can use only half of the space, so that small ones find space. If the queue is
// empty, any proposal fits.
func TestLargeOnesLeaveRoom(t *testing.T) {
	const size = smallBytesMax + 1
	for name, ops := range map[string]int{"by ops": size, "by bytes": 0} {
		t.Run(name, func(t *testing.T) {
			var u proposalQueue
			n := 0
			for u.take(&Proposal{section: make([]byte, size), Ops: ops}) {
				n++
			}
			want := QueueBytesMax / largeShare / size
			if ops > 0 {
				want = QueueOpsMax / largeShare / size
			}
			if n != want {
				t.Errorf("%d large ones found room, want %d", n, want)
			}
			if !u.take(&Proposal{section: make([]byte, smallBytesMax), Ops: QueueOpsMax / 4}) {
				t.Error("a small one found no room")
			}
		})
	}
	var u proposalQueue
	if !u.take(&Proposal{section: make([]byte, QueueBytesMax+1), Ops: QueueOpsMax + 1}) {
		t.Error("an empty queue refused")
	}
	if u.take(&Proposal{section: make([]byte, 1), Ops: 1}) {
		t.Error("a full queue took one more")
	}
}

func TestWithdrawnOnesAreClosedUp(t *testing.T) {
	var u proposalQueue
	all := queueOf(t, &u, slices.Repeat([]int{1}, 100)...)
	for i, q := range all {
		if i%10 != 0 {
			u.small.withdraw(q)
			u.give(q)
		}
		if l := u.small; l.withdrawn > len(l.waiting)/2 {
			t.Fatalf("%d of %d are withdrawn", l.withdrawn, len(l.waiting))
		}
	}
	if got := len(u.next()); got != 10 || u.load.ops != 10 || u.small.withdrawn != 0 {
		t.Fatalf("%d are left, %+v, %d withdrawn", got, u.load, u.small.withdrawn)
	}
}
