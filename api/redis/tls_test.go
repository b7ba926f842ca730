package redis

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestTLSOnThePlainPort checks that a TLS client gets an error at once, and that the log has the
// client's address.
func TestTLSOnThePlainPort(t *testing.T) {
	log := new(proctest.Buffer)
	s := serve(t, newFakeNode(), func(c *Config) { c.Logger = log.Logger() })
	if _, err := tls.Dial("tcp", s.Addr().String(), nil); err == nil || !strings.Contains(err.Error(), "does not look like a TLS handshake") {
		t.Error(err)
	}
	conn, err := net.Dial("tcp", s.Addr().String())
	must.Do(t, err)
	defer conn.Close()
	must.Do(t, conn.SetDeadline(time.Now().Add(must.BecomeMax)))
	_, err = conn.Write([]byte{0x16, 3, 1})
	must.Do(t, err)
	if answer, err := io.ReadAll(conn); !strings.HasPrefix(string(answer), "-ERR ") || !strings.Contains(string(answer), "no TLS") {
		t.Errorf("%q, %v", answer, err)
	}
	if !log.Has("it speaks TLS, and this port does not") || !log.Has("from=127.0.0.1:") {
		t.Error(log.String())
	}
	dial(t, s).want("PING", "+PONG")
}
