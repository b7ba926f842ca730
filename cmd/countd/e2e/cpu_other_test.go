//go:build !linux

package e2e

import "testing"

// onCPU runs f without a restriction, because only the Linux version can select a CPU.
func onCPU(_ testing.TB, _ int, f func()) bool {
	f()
	return false
}
