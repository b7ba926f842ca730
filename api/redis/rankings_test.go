package redis

import "testing"

func TestRankings(t *testing.T) {
	const notLimit = "-ERR limit: not an integer from 1 to 1000"
	node := newFakeNode()
	dial(t, serve(t, node, nil)).want(
		"COUNTD.HOT posts:like", `["window" "1h" "since" 1763812800000 "others_at_most" 3 "results" [["id" "18446744073709551615" "gained" 12 "error" 2] ["id" "5" "gained" 1 "error" 0]]]`,
		"countd.hot posts:like LIMIT 1 WINDOW 24h", `["window" "24h" "since" 1763812800000 "others_at_most" 15 "results" [["id" "18446744073709551615" "gained" 12 "error" 2]]]`,
		"COUNTD.TOP posts:like", `["18446744073709551615" 9 "5" 2]`, "COUNTD.TOP users:posts LIMIT 1", `["18446744073709551615" 9]`,
		"COUNTD.HOT posts:like WINDOW 2h", "-ERR window: not one of 1m, 1h and 24h", "COUNTD.TOP posts:like WINDOW 1h", "-ERR syntax error",
		"COUNTD.HOT posts:like LIMIT 0", notLimit, "COUNTD.TOP posts:like LIMIT 1001", notLimit, "COUNTD.TOP posts:like LIMIT x", notLimit,
		"COUNTD.HOT posts:like LIMIT", "-ERR syntax error", "COUNTD.HOT posts", "-ERR 'posts' is not {keyspace}:{column}",
		"COUNTD.HOT posts:1:like", "-ERR keyspace 'posts' has no column '1:like'", "COUNTD.TOP other:like", "-ERR no counter keyspace 'other'",
		"COUNTD.TOP unread:like", "-ERR no counter keyspace 'unread'", "COUNTD.TOP", "-ERR wrong number of arguments for 'countd.top' command",
	)
	node.scanning = true
	dial(t, serve(t, node, nil)).want("COUNTD.TOP posts:like", "-LOADING the first call reads all rows, 812 so far: try again")
}
