package redis

import (
	"context"
	"slices"
	"testing"
	"time"
)

// Shutdown waits for the replies to commands that were read, and closes idle connections at once.
func TestShutdown(t *testing.T) {
	n := newFakeNode()
	n.hold = make(chan struct{})
	s := serve(t, n, nil)
	idle, busy := dial(t, s), dial(t, s)
	idle.want("PING", "+PONG")
	busy.send("INCR posts:1:like")
	until(t, "the write is under way", func() bool { return n.writes.Load() == 1 })
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }() // ends when the write ends
	idle.ended()
	close(n.hold)
	if got := busy.reply(); got != "1" {
		t.Errorf("the write is answered %s", got)
	}
	busy.ended()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// After its context ends, Shutdown closes all connections, and waits only for running calls of the
// backend.
func TestShutdownCutsOff(t *testing.T) {
	n := newFakeNode()
	n.hold = make(chan struct{})
	s := serve(t, n, nil)
	busy := dial(t, s)
	busy.send("INCR posts:1:like")
	until(t, "the write is under way", func() bool { return n.writes.Load() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }() // ends when the write ends
	<-ctx.Done()
	if _, err := busy.in.ReadByte(); err == nil {
		t.Error("the connection was not cut off")
	}
	close(n.hold)
	if err := <-done; err == nil {
		t.Error("no error")
	}
}

// Once a connection is cut off, the server executes none of its commands that were read but have
// not begun.
func TestShutdownCutsPipelinesShort(t *testing.T) {
	n := newFakeNode()
	n.hold = make(chan struct{})
	s := serve(t, n, nil)
	busy := dial(t, s)
	busy.send(slices.Repeat([]string{"INCR posts:1:like", "READONLY"}, 50)...)
	until(t, "the first write is under way", func() bool { return n.writes.Load() == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }() // ends when the write ends
	busy.ended()
	close(n.hold)
	if err := <-done; err == nil {
		t.Error("no error")
	}
	if writes := n.writes.Load(); writes != 1 {
		t.Errorf("%d writes", writes)
	}
}
