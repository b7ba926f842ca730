// Command hostile attacks a server: it sends wrong tokens at a fixed rate, and holds connections
// whose handshake or request never ends. It shares no code with countd.
//
//	hostile -addr 127.0.0.1:7400 -bad 10000 -slow 400 -half 400 -for 10s
//
// When the server closes a connection, hostile opens a new one half a second later. At the end it
// prints how many wrong tokens the server refused per second, and how many connections hostile
// opened.
package main

import (
	"bufio"
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// badConns is the number of connections that send wrong tokens. Each connection waits for an
	// answer before it sends the next token.
	badConns = 32
	// dripEvery is how often a slow connection sends one more byte.
	dripEvery = 500 * time.Millisecond
	dialMax   = 5 * time.Second
	// reopenAfter prevents a flood of new connections, which would be a different attack.
	reopenAfter = 500 * time.Millisecond
)

func main() {
	addr := flag.String("addr", "127.0.0.1:7400", "server")
	overTLS := flag.Bool("tls", false, "the server has TLS: wrong tokens are sent over it, slow connections in their handshake")
	bad := flag.Int("bad", 0, "wrong tokens a second")
	slow := flag.Int("slow", 0, "connections that send a byte now and then")
	half := flag.Int("half", 0, "connections that send nothing")
	duration := flag.Duration("for", 10*time.Second, "how long")
	flag.Parse()
	h := &hostile{addr: *addr, tls: *overTLS, until: time.Now().Add(*duration)}
	var all sync.WaitGroup
	if *bad > 0 {
		every := time.Second * badConns / time.Duration(*bad)
		for range badConns {
			all.Go(func() { h.badTokens(every) })
		}
	}
	for range *slow {
		all.Go(func() { h.hold(true) })
	}
	for range *half {
		all.Go(func() { h.hold(false) })
	}
	all.Wait()
	fmt.Printf("%.0f %d\n", float64(h.refused.Load())/duration.Seconds(), h.opened.Load())
	if n := h.served.Load(); n > 0 {
		log.Fatalf("%d wrong tokens were served", n)
	}
}

type hostile struct {
	addr                    string
	tls                     bool
	until                   time.Time
	refused, served, opened atomic.Int64
}

// dial opens a connection, or returns nil once the time is over.
func (h *hostile) dial() net.Conn {
	for time.Now().Before(h.until) {
		conn, err := net.DialTimeout("tcp", h.addr, dialMax)
		if err == nil {
			h.opened.Add(1)
			_ = conn.SetDeadline(h.until)
			return conn
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// badTokens sends wrong tokens, one in each interval, on connections that stay open.
func (h *hostile) badTokens(every time.Duration) {
	due := time.Now()
	for {
		conn := h.dial()
		if conn == nil {
			return
		}
		if h.tls {
			conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		in := bufio.NewReader(conn)
		for time.Now().Before(h.until) {
			time.Sleep(time.Until(due))
			due = due.Add(every)
			if _, err := fmt.Fprintf(conn, "GET /v1/counters/posts/1 HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer ctd_k1_%016x%016x%016x%016x\r\n\r\n",
				h.addr, rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()); err != nil {
				break
			}
			answer, err := http.ReadResponse(in, nil)
			if err != nil {
				break
			}
			_, _ = in.Discard(int(answer.ContentLength))
			if answer.StatusCode == http.StatusUnauthorized {
				h.refused.Add(1)
			} else if answer.StatusCode < 300 {
				h.served.Add(1)
			}
		}
		_ = conn.Close()
	}
}

// hold keeps a connection open. If drips is set, it sends a request or a handshake byte by
// byte; otherwise it sends nothing.
func (h *hostile) hold(drips bool) {
	begin := "GET /v1/counters/posts/1 HTTP/1.1\r\nX: "
	if h.tls {
		begin = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
	}
	for {
		conn := h.dial()
		if conn == nil {
			return
		}
		closed := make(chan struct{})
		go func() { // ends when the connection is closed
			defer close(closed)
			_, _ = conn.Read(make([]byte, 1<<10))
		}()
		for i, ends := 0, false; !ends; i++ {
			select {
			case <-closed:
				ends = true
			case <-time.After(dripEvery):
				if drips {
					at := i % len(begin)
					if i >= len(begin) {
						at = len(begin) - 1
					}
					if _, err := conn.Write([]byte{begin[at]}); err != nil {
						ends = true
					}
				}
			}
		}
		_ = conn.Close()
		<-closed
		time.Sleep(reopenAfter)
	}
}
