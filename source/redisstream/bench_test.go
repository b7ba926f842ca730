package redisstream

import (
	"bytes"
	"encoding/json"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// cpu returns the CPU time of the process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSource reads a stream through a runner, and BenchmarkBare with a consumer that counts in
// a map. Both report this process's CPU time for each message.
func BenchmarkSource(b *testing.B) { benchmark(b, true) }

func BenchmarkBare(b *testing.B) { benchmark(b, false) }

func benchmark(b *testing.B, throughSource bool) {
	q, client := newQueue(b, "")
	q.Config = string(bytes.Replace([]byte(q.Config), []byte("batch: {messages: 100, linger: 1ms}\n"), nil, 1))
	for start := 0; start < b.N; start += 1000 {
		_, err := client.Pipelined(b.Context(), func(p redis.Pipeliner) error {
			for i := start; i < min(b.N, start+1000); i++ {
				p.XAdd(b.Context(), &redis.XAddArgs{Stream: "likes", Values: []any{"value", brokertest.Like(uint64(i%10_000), 1)}})
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	before := cpu()
	if throughSource {
		c := sinktest.New(4, nil)
		r := q.Start(b, c)
		for r.Status().Applied < uint64(b.N) {
			time.Sleep(time.Millisecond)
		}
		b.StopTimer()
		r.Stop()
	} else {
		bare(b, client)
	}
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

func bare(b *testing.B, client *redis.Client) {
	counts, last := map[uint64]int64{}, "0"
	for n := 0; n < b.N; {
		streams, err := client.XRead(b.Context(), &redis.XReadArgs{Streams: []string{"likes", last}, Count: 10_000}).Result()
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range streams[0].Messages {
			var op struct {
				ID  json.Number
				Add map[string]int64
			}
			if err := json.Unmarshal([]byte(e.Values["value"].(string)), &op); err != nil {
				b.Fatal(err)
			}
			id, _ := strconv.ParseUint(string(op.ID), 10, 64)
			counts[id] += op.Add["like"]
			last = e.ID
			n++
		}
	}
}
