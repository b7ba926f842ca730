// Package must contains helpers that tests of many packages share: checks, callers that verify
// calls between nodes, a network cable that a test can cut, and certificates. A check that fails
// ends the test.
package must

import (
	"bytes"
	"testing"
	"time"
)

// BecomeMax is how long a test waits for a condition, a call or bytes of a connection. Only a failing
// test waits so long. A busy machine with few cores needs many times as long as an idle machine.
const BecomeMax = 3 * time.Minute

// Become polls until holds returns true. After BecomeMax it ends the test.
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

// Do ends the test if err is not nil.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Flipped returns a copy of content with one bit of the byte at the index at flipped.
func Flipped(content []byte, at int) []byte {
	c := bytes.Clone(content)
	c[at] ^= 0x40
	return c
}
