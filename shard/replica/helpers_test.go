package replica

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// eventuallyMax is for how long a test waits for what must come: on a busy machine of
// few cores that takes many times as long as on an idle one.
const eventuallyMax = time.Minute

// eventually polls until what holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(eventuallyMax)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cpuTime is what this process has used, which a busy machine changes less than
// the time that goes by.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
