//go:build !linux

package proctest

import "testing"

// OnCPU runs f; only Linux can give it a CPU of its own.
func OnCPU(_ testing.TB, _ int, f func()) bool {
	f()
	return false
}
