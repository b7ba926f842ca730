package rafttest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/countd/countd/internal/must"
)

// CPUTime returns the processor time that this process has used. Other processes affect it less
// than the elapsed time.
func CPUTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must.Do(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
