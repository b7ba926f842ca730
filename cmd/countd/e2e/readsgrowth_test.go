package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/proctest"
)

// TestReadsDuringGrowth reads the same rows and posts again and again while their keyspaces grow from 1 to 3 shards.
// Each of these has every row or post exactly once, and in order:
//
//  1. a scan in small pages, and an export by countctl;
//  2. the rows with the largest counts;
//  3. a timeline in small pages.
func TestReadsDuringGrowth(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{Shards: oneShard})
	at, db := c.Nodes()[0], clientOf(t, c.Nodes()...)
	const rows = 2000
	reader := client.Number(7)
	var ids []client.ID
	text := "id,like\n"
	for i := range rows {
		ids = append(ids, client.Number(uint64(i*i+1)))
		text += fmt.Sprintf("%d,%d\n", i*i+1, i+1)
	}
	csv := filepath.Join(t.TempDir(), "rows.csv")
	if err := os.WriteFile(csv, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at.MustCtl("import", csv)
	var authors []client.ID
	var posts []client.Post // newest first
	for n := uint64(20); n < 30; n++ {
		author := client.Number(n)
		authors = append(authors, author)
		for i := range uint64(12) {
			id := client.Number(1_000_000 + n + 10*i)
			if _, err := db.AddPost(t.Context(), author, id, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			posts = append(posts, client.Post{ID: id, Author: author})
		}
	}
	slices.SortFunc(posts, func(a, b client.Post) int { return b.ID.Compare(a.ID) })
	if _, err := db.Feeds().Follow(t.Context(), reader, authors, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	exported := at.MustCtl("export", "-")
	checks := map[string]func() error{
		"a scan": func() error {
			var got []client.ID
			for cursor := ""; ; {
				page, err := db.Scan(t.Context(), "posts", cursor, 37, nil, linearizableRead)
				if err != nil {
					return err
				}
				for _, row := range page.Rows {
					got = append(got, row.ID)
				}
				if cursor = page.Cursor; cursor == "" {
					break
				}
			}
			if !slices.Equal(got, ids) {
				return fmt.Errorf("%d ids, want %d: %v", len(got), len(ids), got)
			}
			return nil
		},
		"an export": func() error {
			if got := at.MustCtl("export", "-"); got != exported {
				return fmt.Errorf("it has\n%s", got)
			}
			return nil
		},
		"the largest": func() error {
			top, err := db.Top(t.Context(), "posts", "like", 50, linearizableRead)
			for i, row := range top {
				if want := ids[rows-1-i]; row.ID != want {
					return fmt.Errorf("place %d has id %s, want %s", i, row.ID, want)
				}
			}
			if err == nil && len(top) != 50 {
				err = fmt.Errorf("%d rows", len(top))
			}
			return err
		},
		"a timeline": func() error {
			var got []client.Post
			for q := (client.PostQuery{Limit: 7}); ; {
				page, err := db.Timeline(t.Context(), reader, q, linearizableRead)
				if err != nil {
					return err
				}
				if len(page.UnreadableShards) > 0 {
					return fmt.Errorf("shards %v are left out", page.UnreadableShards)
				}
				got = append(got, page.Posts...)
				if q.Cursor = page.Cursor; q.Cursor == "" {
					break
				}
			}
			if !slices.EqualFunc(got, posts, samePost) {
				return fmt.Errorf("%v, want %v", got, posts)
			}
			return nil
		},
	}
	grown := make(chan struct{})
	var reads sync.WaitGroup
	for name, check := range checks {
		reads.Go(func() { // ends once the keyspaces have grown
			for n := 1; ; n++ {
				if err := check(); err != nil {
					t.Errorf("%s, time %d: %v", name, n, err)
					return
				}
				select {
				case <-grown:
					t.Logf("%s: %d times", name, n)
					return
				default:
				}
			}
		})
	}
	for _, keyspace := range []string{"posts", "users", "feed"} {
		grow(t, c, keyspace, 1)
	}
	close(grown)
	reads.Wait()
}
