package brokertest

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/source/sink"
	"github.com/countd/countd/source/sink/sinktest"
)

// Regrown tests that a reader stalls after the queue lost counted messages, even if the queue has
// grown past the shards' positions since. The reader then never sees that the queue's end is below
// its position. After a seek the next reader continues. save saves the state of the queue, and
// lose returns the queue to that state. Both functions may stop the queue briefly.
func Regrown(t *testing.T, q *Queue, save, lose func(t *testing.T)) {
	t.Helper()
	c := sinktest.New(2, nil)
	like := Like(1, 1)
	count := func(messages int, want int64) {
		r := q.Start(t, c)
		q.Write(t, slices.Repeat([]string{like}, messages)...)
		r.Counts(t, c, want)
		must.Become(t, "all shards have moved", func() bool { return c.At(c.Positions()[0]) })
		r.Stop()
	}
	count(3, 3)
	save(t)
	count(2, 5)
	lose(t)
	q.Write(t, slices.Repeat([]string{like}, 200)...)
	r := q.Start(t, c)
	r.Stalls(t, "the queue lost messages and has others in their place")
	if got := c.Sums()[1]; got != 5 {
		t.Errorf("row 1 is %d after messages were lost", got)
	}
	r.Stop()
	to := slices.MaxFunc(c.Positions(), sink.Position.Compare)
	c.Seek(to)
	r = q.Start(t, c)
	must.Become(t, "it goes on after a seek", func() bool { return r.Status().State == "running" && c.Sums()[1] > 5 })
	r.Stop()
}

// Copy replaces a directory by a copy of another. The copied files keep their owners.
func Copy(t testing.TB, to, from string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", `rm -rf "$1" && cp -a "$2" "$1"`, "sh", to, from).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
