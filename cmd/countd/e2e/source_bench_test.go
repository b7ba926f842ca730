package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/countd/countd/internal/proctest"
)

// BenchmarkSource counts b.N messages of a real broker with one node, which did not run while
// they were written, and then with a bare consumer: the broker's client and a Go map. "cpu-ns"
// is the processor time of a message in countd or in the consumer, without the broker's.
func BenchmarkSource(b *testing.B) {
	for name, start := range map[string]func(testing.TB) *queue{
		"redis": startRedisQueue, "nats": startNATSQueue, "kafka": startKafkaQueue,
		"outbox": func(t testing.TB) *queue { return startPostgresQueues(t)[0] },
	} {
		b.Run(name, func(b *testing.B) { benchmarkSource(b, start(b)) })
	}
}

// bareConsumers read all messages of a queue, and count them.
var bareConsumers = map[string]func(b *testing.B, q *queue, count func(message []byte)){
	"redis": bareRedis, "nats": bareNATS, "kafka": bareKafka,
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
	bare := bareConsumers[q.name]
	if bare == nil {
		return // its log can be read once only
	}
	counts, messages := map[uint64]int64{}, 0
	before, began = cpuOf(b, os.Getpid()), time.Now()
	bare(b, q, func(message []byte) {
		var op struct {
			ID  uint64
			Add map[string]int64
		}
		if err := json.Unmarshal(message, &op); err != nil {
			b.Fatal(err)
		}
		counts[op.ID] += op.Add["like"]
		messages++
	})
	report("bare-", cpuOf(b, os.Getpid())-before, time.Since(began))
	if messages < b.N {
		b.Fatalf("the bare consumer counted %d messages", messages)
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
	const user, system, ticks = 11, 12, 100 // of proc(5), from the state on
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
