package e2e

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// onCPU runs f on one CPU: the cpu-th of those that the test may use. Processes that f starts are
// also restricted, but not those that other goroutines start. If that CPU does not exist, onCPU
// runs f without a restriction and returns false.
func onCPU(t testing.TB, cpu int, f func()) bool {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatalf("cannot read the CPUs of the test: %v", err)
	}
	for i, nth := 0, 0; i < len(all)*64; i++ {
		if !all.IsSet(i) {
			continue
		}
		if nth == cpu {
			one.Set(i)
		}
		nth++
	}
	if one.Count() == 0 {
		f()
		return false
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("cannot give a CPU: %v", err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Errorf("cannot take the CPU back: %v", err)
		}
	}()
	f()
	return true
}
