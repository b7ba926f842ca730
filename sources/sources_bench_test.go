package sources

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// BenchmarkSource counts the messages of an in-memory queue on a single node with its log on disk.
// It reports the CPU time for each message. That covers decoding, checks, the log entry and its
// apply, but no broker.
func BenchmarkSource(b *testing.B) {
	const rows, bufferedMax = 100_000, 1 << 16
	messages := make([]string, bufferedMax)
	for i := range messages {
		messages[i] = fmt.Sprintf(`{"keyspace":"posts","id":%d,"add":{"like":1}}`, uint64(i)*0x9e3779b97f4a7c15%rows)
	}
	st := start(b, 1)
	for left := b.N; left > 0; left -= len(messages) {
		st.queue.add(0, messages[:min(left, len(messages))]...)
	}
	b.ResetTimer()
	before := cpuTime()
	need(st.put(""))(b)
	st.eventually("all is counted", through(uint64(b.N)))
	b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the processor time of the process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
