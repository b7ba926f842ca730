package nats

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// BenchmarkSource reads a stream through a runner, and reports this process's CPU time for each
// message.
func BenchmarkSource(b *testing.B) {
	q, js := newQueue(b)
	q.Config = strings.Replace(q.Config, "batch: {messages: 100, linger: 1ms}\n", "", 1)
	for range b.N {
		if _, err := js.PublishAsync("likes", []byte(brokertest.Like(1, 1))); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	stream, err := js.Stream(b.Context(), "LIKES")
	if err != nil || stream.CachedInfo().State.Msgs != uint64(b.N) {
		b.Fatal(err)
	}
	b.ResetTimer()
	before := cpu()
	r := q.Start(b, sinktest.New(4, nil))
	for r.Status().Applied < uint64(b.N) {
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	r.Stop()
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// cpu returns the CPU time of the process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
