package rpc

import (
	"bytes"
	"testing"
	"time"
)

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// changed returns a copy with one bit of a byte flipped.
func changed(content []byte, at int) []byte {
	c := bytes.Clone(content)
	c[at] ^= 0x40
	return c
}

const eventuallyMax = time.Minute

// eventually waits until a condition holds.
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

func testMux(t *testing.T) *Mux {
	t.Helper()
	m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	mustDo(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}
