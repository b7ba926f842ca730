// Package must holds what tests of many packages share: checks, the longest wait of a test, models of
// calls between nodes, a cable that a test cuts, and certificates.
// A check that fails ends the test.
package must

import (
	"bytes"
	"testing"
	"time"
)

// BecomeMax is how long a test waits for a condition. A busy machine with few cores needs many
// times as long as an idle machine.
const BecomeMax = time.Minute

// Become polls until a condition holds.
func Become(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(BecomeMax)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Do ends the test with an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Flipped returns a copy with one bit of a byte flipped.
func Flipped(content []byte, at int) []byte {
	c := bytes.Clone(content)
	c[at] ^= 0x40
	return c
}
