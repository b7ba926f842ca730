package client_test

import (
	"slices"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/nodetest"
)

func TestRankings(t *testing.T) {
	ctx, c := t.Context(), dial(t, nodetest.New(t).URL)
	for id, likes := range map[client.ID]int64{client.Number(7): 3, client.Number(8): 9, client.Number(1<<64 - 1): 9} {
		if _, err := c.Incr(ctx, "posts", id, client.Count{Column: "like", Value: likes}); err != nil {
			t.Fatal(err)
		}
	}
	hot, err := c.Hot(ctx, "posts", "like", "1m", 2, client.ReadOptions{Consistency: "linearizable"})
	if err != nil || hot.Window != "1m" || hot.Since.IsZero() || hot.OthersAtMost != 9 || len(hot.Results) != 2 {
		t.Fatalf("got %+v, %v", hot, err)
	}
	for i, id := range []client.ID{client.Number(8), client.Number(1<<64 - 1)} {
		likes, _ := hot.Results[i].Counts.Get("like")
		if got := hot.Results[i]; got.ID != id || got.Gained != 9 || got.Error != 0 || likes != 9 {
			t.Errorf("row %d: %+v", i, got)
		}
	}
	top, err := c.Top(ctx, "posts", "like", 0, client.ReadOptions{Consistency: "linearizable"})
	var ids []client.ID
	for _, row := range top {
		ids = append(ids, row.ID)
	}
	if want := []client.ID{client.Number(8), client.Number(1<<64 - 1), client.Number(7)}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("top %v, %v, want %v", ids, err, want)
	}
	if _, err := c.Hot(ctx, "posts", "like", "2h", 0, client.ReadOptions{}); err == nil {
		t.Error("another window was accepted")
	}
	if _, err := c.Top(ctx, "posts", "likes", 0, client.ReadOptions{}); err == nil {
		t.Error("a column that is not there was accepted")
	}
}
