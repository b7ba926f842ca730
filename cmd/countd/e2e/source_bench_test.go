package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/countd/countd/internal/proctest"
)

// BenchmarkSource writes b.N messages to a real broker. It then counts them with one node, and with
// a bare consumer: the broker's client and a Go map. For a Redis stream, there are also two
// consumers that count in another Redis, which syncs its log before each answer. The consumer
// "pipeline" sends counts and offset in one pipeline, so a crash can make it count some messages
// twice or not at all. The consumer "multi" sends them in one transaction. "cpu-ns" is the
// processor time per message in countd or in the consumer, without the broker's.
func BenchmarkSource(b *testing.B) {
	for name, start := range map[string]func(testing.TB) *queue{
		"redis": startRedisQueue, "nats": startNATSQueue, "kafka": startKafkaQueue, "outbox": startOutboxQueue,
	} {
		b.Run(name, func(b *testing.B) { benchmarkSource(b, start(b)) })
	}
}

// startOutboxQueue starts an outbox and creates a second slot for the bare consumer. Each consumer
// needs its own slot, because a slot reads the log only once.
func startOutboxQueue(t testing.TB) *queue {
	q := startPostgresQueues(t)[0]
	succeeds(t, "there is a slot", func(ctx context.Context) error {
		conn, err := pgconn.Connect(ctx, outboxDSN(q))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "SELECT pg_create_logical_replication_slot('bare', 'pgoutput')").ReadAll()
		return err
	})
	return q
}

func outboxDSN(q *queue) string {
	return "postgres://postgres@" + q.broker.Addr + "/postgres?sslmode=disable"
}

// bareConsumers are functions that read all messages of a queue and call count for each.
var bareConsumers = map[string]func(b *testing.B, q *queue, count func(message []byte)){
	"redis": bareRedis, "nats": bareNATS, "kafka": bareKafka, "outbox": bareOutbox,
}

func benchmarkSource(b *testing.B, q *queue) {
	const rows, batch = 100_000, 1000
	for at := 0; at < b.N; at += batch {
		likes := make([]like, min(batch, b.N-at))
		for i := range likes {
			likes[i] = like{uint64(at+i) * 0x9e3779b97f4a7c15 % rows, 1}
		}
		if err := q.write(b.Context(), likes); err != nil {
			b.Fatal(err)
		}
	}
	n := proctest.NewNode(b, bin, b.TempDir())
	n.StartReady()
	file := filepath.Join(b.TempDir(), "source.yaml")
	if err := os.WriteFile(file, []byte("name: "+q.name+"\n"+q.config), 0o600); err != nil {
		b.Fatal(err)
	}
	before, began := cpuOf(b, n.PID()), time.Now()
	b.ResetTimer()
	n.MustCtl("source", "create", file)
	for {
		var shown struct{ Applied uint64 }
		n.MustCall(http.MethodGet, "/v1/sources/"+q.name, nil, &shown)
		if shown.Applied >= uint64(b.N) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	report := func(of string, cpu, took time.Duration) {
		b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), of+"cpu-ns/op")
		b.ReportMetric(float64(b.N)/took.Seconds(), of+"msgs/s")
	}
	report("", cpuOf(b, n.PID())-before, time.Since(began))
	n.Kill()
	counters := map[string]func(*testing.B) counter{"bare-": countInMap}
	if q.name == "redis" {
		counters["pipeline-"] = func(b *testing.B) counter {
			return countInRedis(b, func(c *redis.Client) redis.Pipeliner { return c.Pipeline() })
		}
		counters["multi-"] = func(b *testing.B) counter {
			return countInRedis(b, func(c *redis.Client) redis.Pipeliner { return c.TxPipeline() })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		c, messages := counters[name](b), 0
		before, began = cpuOf(b, os.Getpid()), time.Now()
		bareConsumers[q.name](b, q, func(message []byte) {
			var op struct {
				ID  uint64
				Add map[string]int64
			}
			if err := json.Unmarshal(message, &op); err != nil {
				b.Fatal(err)
			}
			c.add(op.ID, op.Add["like"])
			if messages++; messages%consumerBatch == 0 || messages == b.N {
				c.flush(messages)
			}
		})
		report(name, cpuOf(b, os.Getpid())-before, time.Since(began))
		if messages < b.N || c.sum() != int64(messages) {
			b.Fatalf("the consumer %s counted %d of %d messages", name, c.sum(), messages)
		}
	}
}

// consumerBatch is the number of messages that a consumer counts at once. It is the same as for a
// source.
const consumerBatch = 10_000

// counter is where a consumer stores its counts.
type counter struct {
	add   func(id uint64, n int64)
	flush func(messages int) // messages is the number of messages read so far
	sum   func() int64       // returns the sum of all counts
}

func countInMap(*testing.B) counter {
	counts := map[uint64]int64{}
	return counter{
		add:   func(id uint64, n int64) { counts[id] += n },
		flush: func(int) {},
		sum: func() (sum int64) {
			for _, n := range counts {
				sum += n
			}
			return sum
		},
	}
}

func countInRedis(b *testing.B, begin func(*redis.Client) redis.Pipeliner) counter {
	ctx := b.Context()
	client := redis.NewClient(&redis.Options{Addr: proctest.StartDurableRedis(b).Addr})
	b.Cleanup(func() { client.Close() })
	pipe := begin(client)
	return counter{
		add: func(id uint64, n int64) { pipe.HIncrBy(ctx, "likes", strconv.FormatUint(id, 10), n) },
		flush: func(messages int) {
			pipe.Set(ctx, "offset", messages, 0)
			if _, err := pipe.Exec(ctx); err != nil {
				b.Fatal(err)
			}
		},
		sum: func() (sum int64) {
			for _, text := range client.HVals(ctx, "likes").Val() {
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += n
			}
			return sum
		},
	}
}

// bareOutbox reads the slot named bare, like package source/postgres. It confirms nothing, which
// saves PostgreSQL work.
func bareOutbox(b *testing.B, q *queue, count func([]byte)) {
	ctx := b.Context()
	config, err := pgconn.ParseConfig(outboxDSN(q))
	if err != nil {
		b.Fatal(err)
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	conn.Frontend().Send(&pgproto3.Query{String: `START_REPLICATION SLOT bare LOGICAL 0/0 (proto_version '1', publication_names '"countd"', messages 'true')`})
	if err := conn.Frontend().Flush(); err != nil {
		b.Fatal(err)
	}
	const logData, logHeader = 'w', 25 // the type of an XLogData message, and the length of its header
	for n := 0; n < b.N; {
		m, err := conn.ReceiveMessage(ctx)
		if err != nil {
			b.Fatal(err)
		}
		data, is := m.(*pgproto3.CopyData)
		if !is || data.Data[0] != logData {
			continue
		}
		message := data.Data[logHeader:]
		if message[0] != 'M' {
			continue // skip messages about transactions
		}
		_, message, _ = bytes.Cut(message[1+1+8:], []byte{0}) // skip the type, the flags, the position and the prefix
		count(message[4:])                                    // skip the length
		n++
	}
}

func bareRedis(b *testing.B, q *queue, count func([]byte)) {
	client := redis.NewClient(&redis.Options{Addr: q.broker.Addr})
	defer client.Close()
	for n, last := 0, "0"; n < b.N; {
		streams, err := client.XRead(b.Context(), &redis.XReadArgs{Streams: []string{"likes", last}, Count: 10_000}).Result()
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range streams[0].Messages {
			count([]byte(m.Values["value"].(string)))
			last = m.ID
		}
		n += len(streams[0].Messages)
	}
}

func bareNATS(b *testing.B, q *queue, count func([]byte)) {
	conn, err := nats.Connect("nats://" + q.broker.Addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		b.Fatal(err)
	}
	consumer, err := js.OrderedConsumer(b.Context(), "LIKES", jetstream.OrderedConsumerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(10_000))
	if err != nil {
		b.Fatal(err)
	}
	defer messages.Stop()
	for range b.N {
		m, err := messages.Next()
		if err != nil {
			b.Fatal(err)
		}
		count(m.Data())
	}
}

func bareKafka(b *testing.B, q *queue, count func([]byte)) {
	client, err := kgo.NewClient(kgo.SeedBrokers(q.broker.Addr), kgo.ConsumeTopics("likes"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	for n := 0; n < b.N; {
		fetches := client.PollFetches(context.Background())
		if err := fetches.Err(); err != nil {
			b.Fatal(err)
		}
		for r := range fetches.RecordsAll() {
			count(r.Value)
			n++
		}
	}
}

// cpuOf returns the processor time of a process.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	if pid == os.Getpid() {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skip("needs Linux: ", err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const user, system, ticks = 11, 12, 100 // indexes of fields of proc(5), where the state has index 0; ticks per second
	sum := uint64(0)
	for _, i := range []int{user, system} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}
