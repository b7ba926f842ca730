package counters

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// newestPosts returns the same posts as a sort of all posts. The authors, the cursor and the posts
// of other nodes are random.
func TestNewestEqualsSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.OneOf(rapid.Uint64Range(0, 30), rapid.Uint64Range(1, 5000), rapid.Just[uint64](math.MaxUint64))
		var n newestPosts
		for range rapid.IntRange(1, 3).Draw(t, "pages") { // reuse the same newestPosts
			limit := rapid.IntRange(1, 8).Draw(t, "limit")
			n.Reset(limit)
			var all []foundPost
			for author := range rapid.IntRange(0, 12).Draw(t, "authors") {
				list := rapid.SliceOfNDistinct(ids, 0, 300, rapid.ID[uint64]).Draw(t, "ids")
				slices.Sort(list)
				slices.Reverse(list)
				if rapid.Bool().Draw(t, "remote") {
					for _, id := range list {
						n.AddPost(foundPost{id, author})
						all = append(all, foundPost{id, author})
					}
					continue
				}
				last := rapid.OneOf(ids, rapid.Just[uint64](math.MaxUint64)).Draw(t, "last")
				box := Outbox{IDs: list, Trimmed: rapid.Uint64Range(0, 1).Draw(t, "trimmed")}
				n.Add(author, appendOutboxBody(nil, &box), last)
				for _, id := range list {
					if id <= last {
						all = append(all, foundPost{id, author})
					}
				}
			}
			slices.SortFunc(all, func(p, q foundPost) int {
				if p.before(q) {
					return -1
				}
				return 1
			})
			if got, want := n.Posts(), all[:min(limit, len(all))]; !slices.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
		}
	})
}

// An outbox that is encoded and decoded again is unchanged, and a cursor finds each of its ids.
func TestOutboxBodies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.OneOf(rapid.Uint64Range(0, 1000), rapid.Uint64())
		o := Outbox{IDs: rapid.SliceOfNDistinct(ids, 0, 400, rapid.ID[uint64]).Draw(t, "ids"), Trimmed: rapid.Uint64Range(0, 2).Draw(t, "trimmed")}
		slices.Sort(o.IDs)
		slices.Reverse(o.IDs)
		body := appendOutboxBody(nil, &o)
		var got Outbox
		if decodeOutboxBody(&got, body); !slices.Equal(got.IDs, o.IDs) || got.Trimmed != o.Trimmed {
			t.Fatalf("%v became %v", o, got)
		}
		last := ids.Draw(t, "last")
		at, _ := slices.BinarySearchFunc(o.IDs, last, func(a, b uint64) int { return cmp.Compare(b, a) })
		var c outboxCursor
		for more := c.Seek(body, last); more; more = c.Next() {
			if at == len(o.IDs) || o.IDs[at] != c.ID {
				t.Fatalf("from %d the cursor finds %d at %d of %v", last, c.ID, at, o.IDs)
			}
			at++
		}
		if at != len(o.IDs) {
			t.Fatalf("from %d the cursor ends at %d of %v", last, at, o.IDs)
		}
	})
}
