// Package must holds the checks that tests of every package share, and the time that a test
// waits at most. A check that fails ends the test.
package must

import (
	"bytes"
	"testing"
	"time"
)

// BecomeMax is how long a test waits for a condition: on a busy machine with few cores,
// that takes many times as long as on an idle one.
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
