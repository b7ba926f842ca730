package redisstream

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// newQueue returns a stream of a real Redis.
func newQueue(t testing.TB, more string) (*brokertest.Queue, *redis.Client) {
	t.Helper()
	addr := proctest.StartRedis(t)
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: must.BecomeMax, WriteTimeout: must.BecomeMax}) // for replies of 90 MB
	t.Cleanup(func() { client.Close() })
	q := &brokertest.Queue{
		Config: "name: likes\ntype: redis-stream\naddr: " + addr + "\nkey: likes\nbatch: {messages: 100, linger: 1ms}\n" + more,
		Open:   func(c *source.Config, access source.Access) (source.Broker, error) { return Open(c, access) },
		Write: func(t *testing.T, values ...string) {
			_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for _, v := range values {
					p.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"value", v}})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		Letters: func(t *testing.T) (all []string) {
			for _, e := range client.XRange(t.Context(), "likes.dead", "-", "+").Val() {
				if e.Values["source"] != "likes" || e.Values["reason"] == "" || e.Values["position"] == "" {
					t.Errorf("letter %v", e.Values)
				}
				all = append(all, e.Values["value"].(string))
			}
			return all
		},
	}
	return q, client
}

func TestOnce(t *testing.T) {
	t.Parallel()
	q, _ := newQueue(t, "")
	brokertest.Once(t, q)
}

func TestFieldsAsJSON(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "map: {keyspace: posts, id: $.post, column: like, add: 1}")
	for range 3 {
		client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"post", "1"}})
	}
	c := sinktest.New(1, nil)
	q.Start(t, c).Counts(t, c, 3)
}

// TestDocumented: the command of docs/SOURCES.md creates a stream that a source counts.
func TestDocumented(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	var command []any
	for word := range strings.SplitSeq(brokertest.Documented(t, "(?m)^redis-cli (XADD .*)$"), " ") {
		command = append(command, strings.Trim(word, "'"))
	}
	if err := client.Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(err)
	}
	c := sinktest.New(1, nil)
	q.Start(t, c).Counts(t, c, 1)
}

// TestFieldsAreTexts: the fields of an entry are texts, even amounts and booleans.
func TestFieldsAreTexts(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "map: {keyspace: posts, id: $.post, column: like, add: $.n, if: $.on}")
	for _, on := range []string{"1", "0", "true", "False"} {
		client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"post", "1", "n", "5", "on", on}})
	}
	client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"post", "2", "n", "1", "on", "1"}})
	c := sinktest.New(1, nil)
	q.Start(t, c)
	must.Become(t, "the last is counted", func() bool { return c.Sums()[2] == 1 })
	if got, letters := c.Sums()[1], q.Letters(t); got != 10 || len(letters) > 0 {
		t.Errorf("row 1 is %d, want 10; dead letters %q", got, letters)
	}
}

// TestTrim: a trim of read entries is harmless. A trim of unread entries stalls the source, whether
// a reader runs or not.
func TestTrim(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		q, client := newQueue(t, "")
		c := sinktest.New(2, nil)
		like := brokertest.Like(1, 1)
		q.Write(t, like, like, like)
		r := q.Start(t, c)
		r.Counts(t, c, 3)
		must.Become(t, "the group is told", func() bool {
			g := client.XInfoGroups(t.Context(), "likes").Val()
			return len(g) == 1 && g[0].EntriesRead == 3
		})
		r.Stop()
		client.XTrimMaxLen(t.Context(), "likes", 0)
		q.Write(t, like, like)
		r = q.Start(t, c)
		r.Counts(t, c, 5)
		if !running {
			r.Stop()
		}
		// Add and trim in one transaction, so that a running reader cannot read the entries before
		// the trim.
		_, err := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			for range 5 {
				p.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"value", like}})
			}
			p.XTrimMaxLen(t.Context(), "likes", 2)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !running {
			r = q.Start(t, c)
		}
		r.Stalls(t, "trimmed before they were read")
		if got := c.Sums()[1]; got != 5 {
			t.Errorf("row 1 is %d after entries were lost", got)
		}
	}
}

func TestLostStream(t *testing.T) {
	t.Parallel()
	like := brokertest.Like(1, 1)
	for name, c := range map[string]struct {
		harm func(t *testing.T, client *redis.Client, write func(*testing.T, ...string))
		want string
	}{
		"deleted": {func(t *testing.T, client *redis.Client, _ func(*testing.T, ...string)) {
			client.Del(t.Context(), "likes")
		}, "is missing"},
		"made anew": {func(t *testing.T, client *redis.Client, write func(*testing.T, ...string)) {
			_, err := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Del(t.Context(), "likes")
				p.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"value", like}})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}, "not the one that was read before"},
		"entries deleted": {func(t *testing.T, client *redis.Client, _ func(*testing.T, ...string)) {
			_, err := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: "9999999999999-1", Values: []any{"value", like}})
				p.XDel(t.Context(), "likes", "9999999999999-1")
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}, "deleted before they were read"},
	} {
		t.Run(name, func(t *testing.T) {
			q, client := newQueue(t, "")
			shards := sinktest.New(2, nil)
			q.Write(t, like, like)
			r := q.Start(t, shards)
			r.Counts(t, shards, 2)
			c.harm(t, client, q.Write)
			r.Stalls(t, c.want)
			if got := shards.Sums()[1]; got != 2 {
				t.Errorf("row 1 is %d after entries were lost", got)
			}
		})
	}
}

// TestTruncated: a counted entry's id and value do not prove that the stream was not truncated. A
// new entry may have the same id, because the clock of a new master may be behind, or the producer
// sets the ids.
func TestTruncated(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	add := func(ids ...string) {
		for _, id := range ids {
			if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: id, Values: []any{"value", like}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("1000-1", "1000-2", "1000-4")
	r := q.Start(t, shards)
	r.Counts(t, shards, 3)
	_, err := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.XTrimMaxLen(t.Context(), "likes", 0)
		p.Do(t.Context(), "XSETID", "likes", "1000-2", "ENTRIESADDED", 2, "MAXDELETEDID", "0-0")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Stalls(t, "beyond the end of the queue")
	add("1000-3", "1000-4", "1000-5")
	r.Stalls(t, "it has grown since: seek to where it was truncated, 1000-3 or below")
	if got := shards.Sums()[1]; got != 3 {
		t.Errorf("row 1 is %d after entries were lost", got)
	}
}

func TestDoesNotExistYet(t *testing.T) {
	t.Parallel()
	q, _ := newQueue(t, "")
	c := sinktest.New(1, nil)
	r := q.Start(t, c)
	r.Stalls(t, "stream likes is missing")
	q.Write(t, brokertest.Like(1, 1))
	r.Counts(t, c, 1)
}

// TestHighestID: no position follows the entry with the highest id, so it is not read.
func TestHighestID(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	q.Write(t, brokertest.Like(1, 1))
	if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: "18446744073709551615-18446744073709551615", Values: []any{"value", brokertest.Like(1, 1)}}).Err(); err != nil {
		t.Fatal(err)
	}
	c := sinktest.New(2, nil)
	r := q.Start(t, c)
	r.Stalls(t, "has the highest id")
	if got := c.Sums()[1]; got > 1 {
		t.Errorf("row 1 is %d", got)
	}
	if p := (source.Position{Hi: 1, Lo: 1<<64 - 1}); after(p) != (source.Position{Hi: 2}) || before(after(p)) != p {
		t.Errorf("%v follows %v", after(p), p)
	}
}

func TestBounded(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	q.Config = strings.Replace(q.Config, client.Options().Addr, "redis://"+client.Options().Addr+"?read_timeout=3m", 1) // a late answer would be a letter written twice
	const answerMax = 16 << 20
	q.Open = func(c *source.Config, access source.Access) (source.Broker, error) { return open(c, access, answerMax) }
	brokertest.Bounded(t, q, func(source.Reader) int { return 0 })

	// The reader reads many large entries even if they do not fit into one answer together.
	like := brokertest.Like(1, 1)
	c := sinktest.New(1, nil)
	client.Del(t.Context(), "likes")
	for range 20 { // small entries first, so that the reader requests many
		q.Write(t, like, like, like, like, like)
	}
	for range 60 {
		must.Do(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"value", like, "more", strings.Repeat("x", 1<<20)}}).Err())
	}
	r := q.Start(t, c)
	r.Counts(t, c, 160)

	// A single entry that is too large stalls the source.
	client.Del(t.Context(), "likes.dead")
	q.Write(t, like)
	must.Do(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"value", strings.Repeat("x", answerMax)}}).Err())
	r.Stalls(t, "has entries that are too large")
}

// TestDeletedBetween: the source counts the remaining entries below a deleted entry before it
// stalls. So the seek that the stall names skips none of them.
func TestDeletedBetween(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	c := sinktest.New(1, nil)
	for i, id := range []string{"1790000000000-1", "1790000000000-2", "1790000000000-3", "1790000000000-4", "1790000000000-5"} {
		client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: id, Values: []any{"value", brokertest.Like(1, 1<<i)}})
	}
	client.XDel(t.Context(), "likes", "1790000000000-2", "1790000000000-4")
	r := q.Start(t, c)
	r.Stalls(t, "entries up to 1790000000000-4 were deleted before they were read; position is 1790000000000-4; seek to 1790000000000-5 to go on")
	r.Counts(t, c, 1+4)
}

// TestIDsWithoutTimes: if the ids of entries are not times, the lag in seconds is unknown.
func TestIDsWithoutTimes(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "on-error: stop\n")
	client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: "1-0", Values: []any{"value", brokertest.Like(1, 1)}})
	client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: "2-0", Values: []any{"value", "poison"}})
	c := sinktest.New(1, nil)
	r := q.Start(t, c)
	r.Stalls(t, "on-error is stop")
	r.Counts(t, c, 1)
	if s := r.Status(); s.LagSeconds != -1 {
		t.Errorf("the lag is %v s", s.LagSeconds)
	}
}

// TestNoStream: a key of another type stalls the source, although the error of Redis has only a
// text.
func TestNoStream(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	client.Set(t.Context(), "likes", "x", 0)
	q.Start(t, sinktest.New(1, nil)).Stalls(t, "WRONGTYPE")
}

// TestRegrown: a stream was restored to an earlier state, and has got other entries since.
func TestRegrown(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	var saved string
	brokertest.Regrown(t, q, func(t *testing.T) { saved = client.Dump(t.Context(), "likes").Val() }, func(t *testing.T) {
		if err := client.RestoreReplace(t.Context(), "likes", 0, saved).Err(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRemovedMark: if the last counted entry was trimmed or deleted, no entry counts as lost.
func TestRemovedMark(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	remove := []func(last string){
		func(string) {},
		func(last string) { client.XDel(t.Context(), "likes", last) },
		func(string) { client.XTrimMaxLen(t.Context(), "likes", 1) },
		func(string) {},
	}
	for i, remove := range remove {
		r := q.Start(t, shards)
		q.Write(t, like, like)
		r.Counts(t, shards, int64(2*i+2))
		must.Become(t, "the group is told", func() bool {
			g := client.XInfoGroups(t.Context(), "likes").Val()
			return len(g) == 1 && g[0].EntriesRead == int64(2*i+2)
		})
		r.Stop()
		remove(client.XRevRangeN(t.Context(), "likes", "+", "-", 1).Val()[0].ID)
	}
}

// TestRegrownWhileIdle: a reader that has read nothing yet checks that the stream still has the
// entry that was counted last.
func TestRegrownWhileIdle(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	like := brokertest.Like(1, 1)
	q.Write(t, like)
	if _, err := b.Identity(t.Context()); err != nil { // creates the group
		t.Fatal(err)
	}
	saved := client.Dump(t.Context(), "likes").Val()
	first, end, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	q.Write(t, like)
	again, err := b.Again(t.Context(), 0, end, source.Position{Hi: 1 << 62}, nil)
	if err != nil || len(again.Messages) != 1 {
		t.Fatal(again, err)
	}
	counted := &again.Messages[0]
	now := client.Dump(t.Context(), "likes").Val()
	for name, from := range map[string]source.Position{"at its position": after(counted.Position), "ahead of it": first} {
		r, err := b.Read(t.Context(), 0, from, source.MarkOf(counted))
		if err != nil {
			t.Fatal(name, err)
		}
		if err := client.RestoreReplace(t.Context(), "likes", 0, saved).Err(); err != nil {
			t.Fatal(name, err)
		}
		q.Write(t, brokertest.Like(2, 1), brokertest.Like(2, 1), like)
		if got, err := r.Next(t.Context(), 10); err == nil || !strings.Contains(err.Error(), "has others in their place") {
			t.Errorf("%s: %d entries, %v", name, len(got.Messages), err)
		}
		if err := client.RestoreReplace(t.Context(), "likes", 0, now).Err(); err != nil {
			t.Fatal(name, err)
		}
	}
}

// TestRegrownWhileRead: another stream replaces the one that is being read. The reader notices this
// on the same connection and on a new one, and returns no entry of the new stream.
func TestRegrownWhileRead(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, tx redis.Pipeliner, saved string){
		"restored": func(t *testing.T, tx redis.Pipeliner, saved string) {
			tx.RestoreReplace(t.Context(), "likes", 0, saved)
		},
		"copied":  func(t *testing.T, tx redis.Pipeliner, _ string) { tx.Copy(t.Context(), "saved", "likes", 0, true) },
		"renamed": func(t *testing.T, tx redis.Pipeliner, _ string) { tx.Rename(t.Context(), "saved", "likes") },
		"reconnected": func(t *testing.T, tx redis.Pipeliner, saved string) {
			tx.RestoreReplace(t.Context(), "likes", 0, saved)
			tx.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, client := newQueue(t, "")
			shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
			addAt(t, client, "1-0", like)
			r := q.Start(t, shards)
			r.Counts(t, shards, 1)
			saved := client.Dump(t.Context(), "likes").Val()
			must.Do(t, client.Copy(t.Context(), "likes", "saved", 0, false).Err())
			for _, id := range []string{"2-0", "3-0", "4-0"} {
				addAt(t, client, id, like)
			}
			r.Counts(t, shards, 4)
			_, err := client.TxPipelined(t.Context(), func(tx redis.Pipeliner) error {
				replace(t, tx, saved)
				for _, id := range []string{"2-1", "3-1", "4-1", "5-1"} {
					tx.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: id, Values: []any{"value", brokertest.Like(2, 1)}})
				}
				return nil
			})
			must.Do(t, err)
			must.Become(t, "it stalls", func() bool { return r.Status().State == source.StateStalled })
			if got := shards.Sums(); got[1] != 4 || got[2] != 0 {
				t.Errorf("rows are %v after entries were lost: %s", got, r.Status().Reason)
			}
		})
	}
}

// TestBetween: a stream lost its end. Then an entry was added between the marked entry and the
// shard's position. Both a new and a running reader notice that entry.
func TestBetween(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "on-error: stop\n")
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	addAt(t, client, "1-0", like)
	r := q.Start(t, shards)
	r.Counts(t, shards, 1)
	saved := client.Dump(t.Context(), "likes").Val()
	addAt(t, client, "10-0", "poison")
	r.Stalls(t, "on-error is stop")
	must.Become(t, "all shards have moved", func() bool { return shards.At(source.Position{Hi: 10}) })
	r.Stop()
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	again, err := b.Again(t.Context(), 0, source.Position{Hi: 1}, source.Position{Hi: 10}, nil)
	if err != nil || len(again.Messages) != 1 {
		t.Fatal(again, err)
	}
	begun, err := b.Read(t.Context(), 0, source.Position{Hi: 10}, source.MarkOf(&again.Messages[0]))
	must.Do(t, err)
	must.Do(t, client.RestoreReplace(t.Context(), "likes", 0, saved).Err())
	addAt(t, client, "5-0", like)
	addAt(t, client, "11-0", like)
	const reason = "is followed by one at position 5-0"
	if got, err := begun.Next(t.Context(), 10); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("the reader that had begun returns %d entries, %v", len(got.Messages), err)
	}
	r = q.Start(t, shards)
	r.Stalls(t, reason)
	if got := shards.Sums()[1]; got != 1 {
		t.Errorf("row 1 is %d", got)
	}
}

// addAt adds an entry with an id.
func addAt(t *testing.T, client *redis.Client, id, value string) {
	t.Helper()
	must.Do(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: id, Values: []any{"value", value}}).Err())
}

// TestSlowAnswer: if an answer with many large entries does not arrive within the read timeout, the
// reader requests fewer entries.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	const rate = 8 << 20 // bytes a second: five entries take 0.3 s, twenty take 1.2 s
	q, client := newQueue(t, "")
	addr := client.Options().Addr
	q.Config = strings.Replace(q.Config, addr, "redis://"+slowProxy(t, addr, rate)+"?read_timeout=800ms&max_retries=-1", 1)
	large := brokertest.Like(1, 1) + strings.Repeat(" ", 512<<10)
	for range 20 {
		q.Write(t, large)
	}
	shards := sinktest.New(1, nil)
	r := q.Start(t, shards)
	r.Counts(t, shards, 20)

	// If a single entry does not arrive in time, the reason names the setting to change.
	q.Write(t, brokertest.Like(1, 1)+strings.Repeat(" ", rate))
	must.Become(t, "it says so", func() bool { return strings.Contains(r.Status().Reason, "read_timeout") })

	// If the context of a call ends before the read timeout, the error does not name that setting,
	// because a longer timeout would not help.
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	short, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	if _, _, err := b.Bounds(short, 0); err == nil || strings.Contains(err.Error(), "read_timeout") {
		t.Errorf("a call of 400 ms ended with %v", err)
	}
}

// slowProxy returns the address of a proxy that passes at most rate bytes a second from addr to a client.
func slowProxy(t *testing.T, addr string, rate int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				defer server.Close()
				_, _ = io.Copy(server, client)
			}()
			go func() {
				defer client.Close()
				for buffer := make([]byte, rate/50); ; {
					n, err := server.Read(buffer)
					if _, refused := client.Write(buffer[:n]); err != nil || refused != nil {
						return
					}
					time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestTrimBelowFetched: a position is committed when the reader has already fetched entries above
// it. Then the entries below it are trimmed. The next reader finds that no unread entry is gone.
func TestTrimBelowFetched(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	addAt(t, client, "1-0", "a")
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	reader, err := b.Read(t.Context(), 0, source.Position{Hi: 1, Lo: 1}, source.Mark{})
	must.Do(t, err)
	applied := source.Position{Hi: 2, Lo: 1}
	for n, id := range []string{"2-0", "3-0"} {
		addAt(t, client, id, "a")
		got, err := reader.Next(t.Context(), 10)
		must.Do(t, err)
		if len(got.Messages) != 1 {
			t.Fatalf("%d entries after %s", len(got.Messages), id)
		}
		for range 2 - n { // a tick commits the same position again
			must.Do(t, reader.Commit(t.Context(), applied))
		}
	}
	must.Do(t, client.XTrimMinID(t.Context(), "likes", "3-0").Err())
	next, err := b.Read(t.Context(), 0, applied, source.Mark{})
	must.Do(t, err)
	if got, err := next.Next(t.Context(), 10); err != nil || len(got.Messages) != 1 {
		t.Errorf("%d entries, %v", len(got.Messages), err)
	}
}

// TestTrimBelowBacklog: all entries that were read are trimmed before the reader has reached the
// end of the stream. The reader does not stall. Nor does the next reader, once the position was
// committed.
func TestTrimBelowBacklog(t *testing.T) {
	t.Parallel()
	q, client := newQueue(t, "")
	addAt(t, client, "1-0", "a")
	must.Do(t, client.XTrimMaxLen(t.Context(), "likes", 0).Err()) // an entry is trimmed before the source begins
	const entries = 5 * countFirst
	for n := range entries {
		addAt(t, client, fmt.Sprintf("%d-0", 10+n), "a")
	}
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	_, err := b.Identity(t.Context()) // creates the group
	must.Do(t, err)
	at, _, err := b.Bounds(t.Context(), 0)
	must.Do(t, err)
	read := 0
	for range 2 {
		reader, err := b.Read(t.Context(), 0, at, source.Mark{})
		must.Do(t, err)
		for range 2 {
			got, err := reader.Next(t.Context(), countFirst)
			if err != nil {
				t.Fatalf("after %d entries: %v", read, err)
			}
			if read, at = read+len(got.Messages), got.Next; got.Left != int64(entries-read) {
				t.Errorf("%d entries are left after %d of %d", got.Left, read, entries)
			}
			must.Do(t, client.XTrimMinID(t.Context(), "likes", format(at)).Err())
		}
		must.Do(t, reader.Commit(t.Context(), at))
	}
	for left, want := range map[int64]string{
		int64(entries - read - 1): fmt.Sprintf("1 entries from position %s up to %d-0 were trimmed", at, 10+read+1),
		0:                         fmt.Sprintf("%d entries from position %s up to %d-1 were trimmed", entries-read, at, 10+entries-1),
	} {
		must.Do(t, client.Copy(t.Context(), "likes", "saved", 0, true).Err())
		must.Do(t, client.XTrimMaxLen(t.Context(), "likes", left).Err())
		if _, err := b.Read(t.Context(), 0, at, source.Mark{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d entries are left: %v, want %s", left, err, want)
		}
		must.Do(t, client.Copy(t.Context(), "saved", "likes", 0, true).Err())
	}
}
