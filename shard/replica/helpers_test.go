package replica

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/shardtest"
)

const eventuallyMax = must.BecomeMax

var (
	mustDo, eventually, changed       = must.Do, must.Become, must.Flipped
	testAppend, testHeartbeat, taking = shardtest.Append, shardtest.Heartbeat, shardtest.Taking
)

// cpuTime returns the processor time that this process has used. A busy machine changes it less
// than the elapsed time.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
