package dedup

import (
	"testing"

	"pgregory.net/rapid"
)

// A queue behaves like a slice, and a captured queue never changes.
func TestFifoAgainstModel(t *testing.T) {
	type captured struct {
		fifo[int]
		want []int
	}
	check := func(t *rapid.T, f *fifo[int], want []int) {
		got := []int{}
		for v := range f.all() {
			got = append(got, *v)
		}
		if len(got) != len(want) || f.len() != len(want) {
			t.Fatalf("%d records of %d, want %d", len(got), f.len(), len(want))
		}
		for i, v := range got {
			if v != want[i] {
				t.Fatalf("record %d is %d, want %d", i, v, want[i])
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var f fifo[int]
		var model []int
		var views []captured
		next := 0
		for _, n := range rapid.SliceOfN(rapid.IntRange(-3*fifoBlockLen, 3*fifoBlockLen), 1, 20).Draw(t, "pushed less popped") {
			for ; n > 0; n-- {
				number := f.push(next)
				if *f.at(number) != next {
					t.Fatalf("number %d holds %d, not %d", number, *f.at(number), next)
				}
				model = append(model, next)
				next++
			}
			for ; n < 0 && f.len() > 0; n++ {
				f.pop()
				model = model[1:]
			}
			views = append(views, captured{f.capture(), append([]int(nil), model...)})
			check(t, &f, model)
		}
		for _, v := range views {
			check(t, &v.fifo, v.want)
		}
	})
}
