package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/proctest"
)

// TestRedisDocIsReplayed sends, in order, each command of docs/REDIS.md that is followed by its
// reply, and compares the replies. The page shows replies in the format of redis-cli -3 --json.
func TestRedisDocIsReplayed(t *testing.T) {
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "shared"})
	doc, err := os.ReadFile("../../../docs/REDIS.md")
	if err != nil {
		t.Fatal(err)
	}
	// Use one connection, because a session belongs to a connection. Use one node, because a read
	// sees at once only the writes through its own node.
	client := redis.NewClient(&redis.Options{Addr: c.Nodes()[0].Redis, MaxRetries: -1, PoolSize: 1})
	t.Cleanup(func() { client.Close() })
	replayed := 0
	for _, pair := range regexp.MustCompile(`(?m)^    ([A-Z][A-Z.]+ .*)\n    (.*)\n`).FindAllStringSubmatch(string(doc), -1) {
		var want any
		if err := json.Unmarshal([]byte(pair[2]), &want); err != nil {
			t.Fatalf("%s: the reply is no JSON: %v", pair[1], err)
		}
		var args []any
		for _, word := range strings.Fields(pair[1]) {
			args = append(args, word)
		}
		got, err := client.Do(t.Context(), args...).Result()
		if err != nil {
			t.Fatalf("%s: %v", pair[1], err)
		}
		if got := plain(got); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", pair[1], got, want)
		}
		replayed++
	}
	if replayed < 20 {
		t.Errorf("%d commands were replayed", replayed)
	}
}

// plain converts a reply to the types that json.Unmarshal returns.
func plain(reply any) any {
	switch v := reply.(type) {
	case int64:
		return float64(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(v[i])
		}
		return list
	case map[any]any:
		object := map[string]any{}
		for name, value := range v {
			object[fmt.Sprint(name)] = plain(value)
		}
		return object
	}
	return reply
}
