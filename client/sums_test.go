package client_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/internal/nodetest"
)

// floored adds a delta to a count as a server does at a floor of 0.
func floored(count, delta int64) int64 {
	if delta >= 0 {
		return count + delta
	}
	return max(count+delta, min(count, 0))
}

func number(id client.ID) uint64 {
	n, _ := id.Number()
	return n
}

// The ops of Sums lead to the same counts as the increments one by one, even at a floor and from
// any initial count.
func TestSumsAtAFloor(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 29))
	for range 2000 {
		var s client.Sums
		start := random.Int64N(20) - 5
		want := map[client.ID]int64{client.Number(1): start, client.Number(2): start}
		for range random.IntN(12) {
			id, delta := client.Number(1+random.Uint64N(2)), random.Int64N(15)-7
			s.Add(id, client.Counts{like(delta)})
			want[id] = floored(want[id], delta)
		}
		got := map[client.ID]int64{client.Number(1): start, client.Number(2): start}
		for _, op := range s.Ops() {
			got[op.ID] = floored(got[op.ID], op.Cells[0].Value)
		}
		if got[client.Number(1)] != want[client.Number(1)] || got[client.Number(2)] != want[client.Number(2)] {
			t.Fatalf("from %d, %v give %v, want %v", start, s.Ops(), got, want)
		}
	}
}

// A writer with several batches in flight, whose answers are late or lost, leads to the same counts
// as the increments one by one, even at a floor.
func TestWriterAtAFloor(t *testing.T) {
	server := nodetest.New(t)
	c := clientOf(t, server.URL)
	if _, err := c.ChangeColumns(t.Context(), "posts", []column.Column{{Name: "like", Floor: client.Floor(0)}}); err != nil {
		t.Fatal(err)
	}
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if !strings.HasSuffix(r.URL.Path, "/incr") {
			return nil
		}
		time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
		if rand.IntN(10) == 0 {
			return &nodetest.Fault{Hang: true, After: true}
		}
		return nil
	})
	w := writerOf(t, server, client.WriterConfig{InFlight: 8, BatchOps: 3})
	random, want := rand.New(rand.NewPCG(2, 29)), map[client.ID]int64{}
	for n := range 3000 {
		id, delta := client.Number(1+random.Uint64N(20)), random.Int64N(15)-7
		if err := w.Add(t.Context(), "posts", id, like(delta)); err != nil {
			t.Fatal(err)
		}
		if want[id] = floored(want[id], delta); n%50 == 0 {
			time.Sleep(time.Millisecond) // so that the writer also sends batches that are not full
		}
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, count := range want {
		if got := server.Row(number(id))[2]; got != count {
			t.Errorf("row %s is %d, want %d", id, got, count)
		}
	}
}
