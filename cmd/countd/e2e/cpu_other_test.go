//go:build !linux

package e2e

import "testing"

// onCPU runs f; only Linux can give it a CPU of its own.
func onCPU(_ testing.TB, _ int, f func()) bool {
	f()
	return false
}
