package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/countd/countd/shard/errs"
)

// streamNode starts a node that also answers a stream method.
func (n *callNodes) streamNode(t *testing.T, name, method string, h StreamHandler) {
	t.Helper()
	m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	mustDo(t, err)
	c, err := NewCalls(CallsConfig{Mux: m, Lookup: n.Lookup})
	mustDo(t, err)
	c.HandleStream(method, h)
	c.Serve()
	n.Put(name, m.Addr().String())
	t.Cleanup(func() {
		c.Close()
		m.Close()
	})
}

// A stream delivers all pieces in their order, and then its end or the error of its handler. It
// never delivers an end in place of an error.
func TestStreamsOfCalls(t *testing.T) {
	mustLeaveNothing(t)
	piece := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 100_000) }
	const pieces = 50 // more bytes than the window allows
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
			return ErrLedBy("c.1")
		}
		return nil
	})
	open := func(request string) *Stream {
		t.Helper()
		s, err := a.Stream(testContext(t), "b", "pieces", []byte(request))
		mustDo(t, err)
		t.Cleanup(s.Close)
		return s
	}
	whole := open("")
	for i := range pieces {
		if got, err := whole.Next(); err != nil || !bytes.Equal(got, piece(i)) {
			t.Fatalf("piece %d: %d bytes, %v", i, len(got), err)
		}
	}
	if got, err := whole.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("behind the last: %d bytes, %v", len(got), err)
	}
	if got, err := io.ReadAll(open("")); err != nil || len(got) != pieces*len(piece(0)) {
		t.Errorf("%d bytes were read, %v", len(got), err)
	}
	got, err := io.ReadAll(open("fail"))
	if !errors.Is(err, errs.ErrNoLeader) || LeaderHint(err) != "c.1" || len(got) != pieces*len(piece(0)) {
		t.Errorf("%d bytes were read, %v", len(got), err)
	}
	endless := open("endless")
	if _, err := endless.Next(); err != nil {
		t.Error(err)
	}
	endless.Close()
	if err := <-cancelled; err == nil {
		t.Error("the handler is not told that its caller has gone")
	}
	if _, err := a.Stream(testContext(t), "nobody", "pieces", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("to a node that is not known: %v", err)
	}
	unheard, err := a.Stream(testContext(t), "b", "unheard", nil)
	mustDo(t, err)
	defer unheard.Close()
	if _, err := unheard.Next(); !errors.Is(err, ErrNoMethod) {
		t.Errorf("unheard: %v", err)
	}
}
