package replica

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/rafttest"
)

const eventuallyMax = must.BecomeMax

var (
	mustDo, eventually, changed       = must.Do, must.Become, must.Flipped
	testAppend, testHeartbeat, taking = rafttest.Append, rafttest.Heartbeat, rafttest.Taking
)

// cpuTime is what this process has used, which a busy machine changes less than
// the time that goes by.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
