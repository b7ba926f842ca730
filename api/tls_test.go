package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// TestTLSOnThePlainPort checks that a TLS client at a port without TLS fails at once with an error
// that names the cause, and that the log has the client's address.
func TestTLSOnThePlainPort(t *testing.T) {
	l := startFakeServer(t, nil)
	_, err := http.Get("https://" + l.server.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		t.Error(err)
	}
	conn, err := net.Dial("tcp", l.server.Addr().String())
	must.Do(t, err)
	defer conn.Close()
	must.Do(t, conn.SetDeadline(time.Now().Add(must.BecomeMax)))
	_, err = conn.Write([]byte{0x16, 3, 1})
	must.Do(t, err)
	answer, err := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "this port has no TLS: connect without it") {
		t.Errorf("%q, %v", answer, err)
	}
	if !l.log.Has("it speaks TLS, and this port does not") || !l.log.Has("from=127.0.0.1:") {
		t.Error(l.log.String())
	}
	l.wantGood()
}

// deaf is a fake TLS connection. Its Close waits, as that of crypto/tls does if the client does not
// read.
type deaf struct {
	net.Conn
	closed chan struct{}
}

func (d deaf) NetConn() net.Conn { return d.Conn }
func (d deaf) Close() error      { <-d.closed; return d.Conn.Close() }

// deafListener has connections that are deaf.
type deafListener struct {
	net.Listener
	closed chan struct{}
}

func (l deafListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return deaf{conn, l.closed}, nil
}

// TestShutdownCutsOffBeneathTLS checks that a client that does not read does not delay Shutdown.
func TestShutdownCutsOffBeneathTLS(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	closed := make(chan struct{})
	l := startFakeServer(t, func(c *Config) { c.Listener = deafListener{plain, closed} })
	conn, err := net.Dial("tcp", l.server.Addr().String())
	must.Do(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/ops HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
	must.Do(t, err)
	must.Become(t, "the server has the connection", func() bool { return l.server.listener.Open() == 1 })
	l.server.listener.CloseConns() // returns, although Close of a connection would wait
	must.Do(t, conn.SetReadDeadline(time.Now().Add(must.BecomeMax)))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
	close(closed)
	if err := l.server.Shutdown(context.Background()); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
