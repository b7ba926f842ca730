package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleepExactly sleeps in the kernel and blocks its thread. It returns only about 50 µs late.
func sleepExactly(wait time.Duration) {
	left := unix.NsecToTimespec(wait.Nanoseconds())
	for unix.Nanosleep(&left, &left) == unix.EINTR {
	}
}
