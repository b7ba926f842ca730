package rpc

import (
	"testing"

	"github.com/countd/countd/internal/must"
)

var mustDo, eventually, changed = must.Do, must.Become, must.Flipped

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
