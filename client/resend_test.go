package client_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/client"
)

// diesInAWrite serves HTTP until the first write. It reads the whole write, accepts no further
// connections, and closes the write's connection without an answer. It returns its address and the
// number of writes that it read.
func diesInAWrite(t *testing.T) (addr string, writes *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	writes = new(atomic.Int32)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			for r := bufio.NewReader(conn); ; {
				req, err := http.ReadRequest(r)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, req.Body)
				if req.Method != http.MethodGet {
					writes.Add(1)
					listener.Close()
					break
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close(); <-ended })
	return listener.Addr().String(), writes
}

// The outcome of a write is unknown if a server read the write and died. This holds even on a
// reused connection, on which net/http by itself would send the write again.
func TestAWriteThatKilledItsServerIsUnknown(t *testing.T) {
	for name, write := range map[string]func(*client.Client, client.WriteOptions) error{
		"with a body": func(c *client.Client, o client.WriteOptions) error {
			_, err := c.IncrMany(t.Context(), "posts", []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}}, o)
			return err
		},
		"without": func(c *client.Client, o client.WriteOptions) error {
			_, err := c.Delete(t.Context(), "posts", client.Number(1), o)
			return err
		},
	} {
		for kind, o := range map[string]client.WriteOptions{"key": {}, "once": {Once: true}, "producer": {Producer: "p", Seq: 1}, "unkeyed": {Unkeyed: true}} {
			t.Run(name+", "+kind, func(t *testing.T) {
				addr, writes := diesInAWrite(t)
				c := dial(t, addr)
				if _, err := c.Get(t.Context(), "posts", client.Number(1), client.ReadOptions{}); err != nil {
					t.Fatal(err)
				}
				if err := write(c, o); !errors.Is(err, client.ErrUnknown) {
					t.Errorf("the write is told %v", err)
				}
				if n := writes.Load(); n != 1 {
					t.Errorf("the server read %d writes", n)
				}
			})
		}
	}
}
