package redis

import (
	"strings"
	"testing"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/shard"
)

// No reply shows a dropped keyspace or column, even to a connection that has used it. A keyspace or
// column that is created again under the same name counts from zero.
func TestDropped(t *testing.T) {
	n := openNode(t, false)
	c := dial(t, serve(t, n, nil))
	create := func(columns ...string) {
		t.Helper()
		if _, err := n.CreateKeyspace(t.Context(), shard.Keyspace{Name: "songs", Columns: columns, Shards: 1}); err != nil {
			t.Fatal(err)
		}
	}
	create("plays", "likes", "skips")
	c.want("HSET songs:7 plays 1 likes 2 skips 3", "3", "HSET songs:8 likes 4", "1", "HLEN songs:7", "3",
		"COUNTD.UNREAD.INCR 7 at 1", "[1]")
	if _, err := n.DropColumn(t.Context(), "songs", "likes"); err != nil {
		t.Fatal(err)
	}
	c.want("HGETALL songs:7", `["plays" "1" "skips" "3"]`, "HLEN songs:7", "2", "EXISTS songs:7 songs:8", "1", "TYPE songs:8", "+none",
		"SCAN 0 MATCH songs:*", `["0" ["songs:7"]]`, "SCAN 0 MATCH songs:*:*", `["0" ["songs:7:plays" "songs:7:skips"]]`,
		"HGET songs:7 likes", "-ERR keyspace 'songs' has no column 'likes'", "HMGET songs:7 plays skips", `["1" "3"]`)
	for _, key := range []string{"songs:7:", "songs:7:likes"} {
		if got := c.do("GET " + key); !strings.HasPrefix(got[0], "-ERR") {
			t.Errorf("GET %s: %s", key, got[0])
		}
	}
	if _, err := n.AddColumns(t.Context(), "unread", column.Named("save")); err != nil {
		t.Fatal(err)
	}
	c.want("COUNTD.UNREAD.INCR 7 save 5", "[5]", "COUNTD.UNREAD.GET 7", `["at" 1 "comment" 0 "like" 0 "dm" 0 "save" 5]`)
	if _, err := n.AddColumns(t.Context(), "unread", column.Named("last")); err != nil {
		t.Fatal(err)
	}
	c.want("COUNTD.UNREAD.INCR 7 last 6", "[6]")
	if _, err := n.DropColumn(t.Context(), "unread", "save"); err != nil {
		t.Fatal(err)
	}
	c.want("COUNTD.UNREAD.GET 7", `["at" 1 "comment" 0 "like" 0 "dm" 0 "last" 6]`,
		"COUNTD.POLL 7", `["unread" ["at" 1 "comment" 0 "like" 0 "dm" 0 "last" 6] "notices" [] "dots" [] "feed" 0]`)
	if _, err := n.DropKeyspace(t.Context(), "songs"); err != nil {
		t.Fatal(err)
	}
	c.want("HGETALL songs:7", "-ERR no counter keyspace 'songs'", "SCAN 0 MATCH songs:*", "-ERR no counter keyspace 'songs'")
	create("likes")
	c.want("HGETALL songs:7", "[]", "HINCRBY songs:7 likes 1", "1", "HGETALL songs:7", `["likes" "1"]`)
}
