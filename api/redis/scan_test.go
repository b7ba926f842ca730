package redis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/engine"
)

// TestScanCursorsAreSmall scans ids of all sizes with a client that keeps cursors in doubles.
// Meanwhile it creates and deletes other rows. It checks that
//
//  1. the scan ends;
//  2. each row that stays is returned once;
//  3. a page has at most COUNT rows, or the rows of one block of ids.
func TestScanCursorsAreSmall(t *testing.T) {
	node := newFakeNode()
	c := dial(t, serve(t, node, nil))
	type row struct {
		keyspace string
		id       uint64
	}
	var written []row
	rapid.Check(t, func(t *rapid.T) {
		apply := func(keyspace string, op engine.Op) {
			if _, err := node.tables[keyspace].Apply([]engine.Op{op}, 0, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		set := func(keyspace string, id uint64, n int64) {
			apply(keyspace, engine.Op{ID: id, Kind: engine.OpSet, Cells: []engine.Cell{{Value: n}}})
			written = append(written, row{keyspace, id})
		}
		for _, r := range written { // rows of the previous run
			apply(r.keyspace, engine.Op{ID: r.id, Kind: engine.OpDelete})
		}
		written = written[:0]
		base := rapid.OneOf(rapid.Just(uint64(0)), rapid.Just(uint64(resp.ScanExact-20)), rapid.Just(uint64(resp.ScanExact)+resp.ScanBlock-20), rapid.Just(uint64(1234570313728020480)),
			rapid.Just(uint64(1<<63-20)), rapid.Just(uint64(1<<64-1)-2*resp.ScanBlock), rapid.Just(^uint64(0)-20), rapid.Uint64())
		gap := rapid.OneOf(rapid.Just(uint64(1)), rapid.Uint64Range(1, 100), rapid.Uint64Range(1, resp.ScanBlock), rapid.Uint64Range(1, 1<<60))
		var stay []string
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			keyspace := rapid.SampledFrom([]string{"posts", "users"}).Draw(t, "keyspace")
			id, by := base.Draw(t, "base"), gap.Draw(t, "gap")
			for range rapid.IntRange(1, 60).Draw(t, "rows") {
				set(keyspace, id, 1)
				stay = append(stay, fmt.Sprintf("%s:%d", keyspace, id))
				if id+by < id {
					break
				}
				id += by
			}
		}
		slices.Sort(stay)
		stay = slices.Compact(stay)
		count := rapid.IntRange(1, 40).Draw(t, "count")
		var got []string
		cursor := "0"
		for pages := 0; ; pages++ {
			if pages > 2*len(stay)+1000 {
				t.Fatalf("%d pages of %d rows", pages, len(stay))
			}
			reply := c.do(fmt.Sprintf("SCAN %s COUNT %d", cursor, count))[0]
			words := strings.Fields(strings.NewReplacer("[", " ", "]", " ", `"`, "").Replace(reply))
			if len(words) > 1+2*max(count, resp.ScanBlock) {
				t.Fatalf("a page of %d rows", len(words)-1)
			}
			got = append(got, words[1:]...)
			number, err := strconv.ParseFloat(words[0], 64) // as JavaScript does
			if err != nil || number > 1<<53 {
				t.Fatalf("cursor %q, %v", words[0], err)
			}
			if cursor = strconv.FormatFloat(number, 'f', 0, 64); cursor == "0" {
				break
			}
			id := base.Draw(t, "other") // a row that comes or goes
			if key := fmt.Sprintf("posts:%d", id); !slices.Contains(stay, key) {
				set("posts", id, int64(pages%2))
			}
		}
		for _, key := range stay {
			if n := len(got) - len(slices.DeleteFunc(slices.Clone(got), func(k string) bool { return k == key })); n != 1 {
				t.Fatalf("%s was returned %d times", key, n)
			}
		}
	})
	for _, cursor := range []string{"9007199254740992", "18446744073709551615"} {
		c.want("SCAN "+cursor, "-ERR invalid cursor")
	}
}

// TestScanOfSnowflakes scans ids that do not fit a double: 30 ids per millisecond.
func TestScanOfSnowflakes(t *testing.T) {
	node := newFakeNode()
	c := dial(t, serve(t, node, nil))
	for ms := range 10 {
		for n := range 30 {
			c.do(fmt.Sprintf("INCR posts:%d:like", uint64(1234570313728000000)+uint64(ms)<<22+uint64(n)))
		}
	}
	seen, cursor := map[string]bool{}, "0"
	for pages := 0; pages == 0 || cursor != "0"; pages++ {
		words := strings.Fields(strings.NewReplacer("[", " ", "]", " ", `"`, "").Replace(c.do("SCAN " + cursor + " MATCH posts:* COUNT 10")[0]))
		if cursor = words[0]; pages > 100 {
			t.Fatal("it does not end")
		}
		for _, key := range words[1:] {
			seen[key] = true
		}
	}
	if len(seen) != 300 {
		t.Errorf("%d keys", len(seen))
	}
}
