package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleepExactly blocks its thread in the kernel, which wakes it some 50 µs late.
func sleepExactly(wait time.Duration) {
	left := unix.NsecToTimespec(wait.Nanoseconds())
	for unix.Nanosleep(&left, &left) == unix.EINTR {
	}
}
