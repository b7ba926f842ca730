package shard

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
)

// streamNode starts a node that answers a stream method besides.
func (n *callNodes) streamNode(t *testing.T, name, method string, h streamHandler) {
	t.Helper()
	m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	mustDo(t, err)
	c, err := newCalls(callsConfig{Mux: m, Lookup: n.lookup})
	mustDo(t, err)
	c.handleStream(method, h)
	c.serve()
	n.put(name, m.Addr().String())
	t.Cleanup(func() {
		c.close()
		m.Close()
	})
}

// A stream brings all pieces in their order and then its end, or the error that its
// handler ended with; never an end in place of an error.
func TestStreamsOfCalls(t *testing.T) {
	mustLeaveNothing(t)
	piece := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 100_000) }
	const pieces = 50 // more than fit the window
	cancelled := make(chan error, 1)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	nodes.streamNode(t, "b", "pieces", func(ctx context.Context, request []byte, send func([]byte) error) error {
		if string(request) == "endless" {
			for {
				if err := send(piece(0)); err != nil {
					cancelled <- ctx.Err()
					return err
				}
			}
		}
		for i := range pieces {
			if err := send(piece(i)); err != nil {
				return err
			}
		}
		if string(request) == "fail" {
			return errLedBy("c.1")
		}
		return nil
	})
	open := func(request string) *callStream {
		t.Helper()
		s, err := a.stream(within10s(t), "b", "pieces", []byte(request))
		mustDo(t, err)
		t.Cleanup(s.close)
		return s
	}
	whole := open("")
	for i := range pieces {
		if got, err := whole.next(); err != nil || !bytes.Equal(got, piece(i)) {
			t.Fatalf("piece %d: %d bytes, %v", i, len(got), err)
		}
	}
	if got, err := whole.next(); !errors.Is(err, io.EOF) {
		t.Errorf("behind the last: %d bytes, %v", len(got), err)
	}
	if got, err := io.ReadAll(open("")); err != nil || len(got) != pieces*len(piece(0)) {
		t.Errorf("%d bytes were read, %v", len(got), err)
	}
	got, err := io.ReadAll(open("fail"))
	if !errors.Is(err, ErrNoLeader) || leaderHint(err) != "c.1" || len(got) != pieces*len(piece(0)) {
		t.Errorf("%d bytes were read, %v", len(got), err)
	}
	endless := open("endless")
	if _, err := endless.next(); err != nil {
		t.Error(err)
	}
	endless.close()
	if err := <-cancelled; err == nil {
		t.Error("the handler is not told that its caller has gone")
	}
	if _, err := a.stream(within10s(t), "nobody", "pieces", nil); !errors.Is(err, errNotSent) {
		t.Errorf("to a node that is not known: %v", err)
	}
	unheard, err := a.stream(within10s(t), "b", "unheard", nil)
	mustDo(t, err)
	defer unheard.close()
	if _, err := unheard.next(); !errors.Is(err, errNoMethod) {
		t.Errorf("unheard: %v", err)
	}
}
