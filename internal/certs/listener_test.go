package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
)

// echo serves connections of a listener until the test ends: each connection echoes the bytes that
// it receives.
func echo(t *testing.T, l net.Listener) string {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

func tcp(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	return l
}

// say sends a text and returns an answer of the same length.
func say(conn net.Conn, text string) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(must.BecomeMax)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	answer := make([]byte, len(text))
	_, err := io.ReadFull(conn, answer)
	return string(answer), err
}

// call connects to an echo, sends a text and returns the answer.
func call(addr string, config *tls.Config) (string, error) {
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return say(conn, "hello")
}

// TestListenerRefuses: a client whose handshake fails receives the reason, and the listener logs
// it. Other clients are still served.
func TestListenerRefuses(t *testing.T) {
	ca, rogue := must.NewAuthority(t), must.NewAuthority(t)
	dir := t.TempDir()
	f := must.WriteCert(t, dir, "tls", ca.Issue(must.NodeLeaf("n1")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key, CAFile: must.ReplaceFile(t, filepath.Join(dir, "ca"), ca.Cert())})
	expired := pki.Leaf{Name: "bob", NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	for _, tc := range []struct {
		name   string
		client *tls.Config
		says   string // part of the client's error
		logged string
	}{
		{"no certificate", &tls.Config{RootCAs: ca.Pool()}, "certificate required", "didn't provide a certificate"},
		{"another authority", &tls.Config{RootCAs: ca.Pool(), GetClientCertificate: always(rogue.Client(pki.Leaf{Name: "bob"}))}, "unknown certificate authority", "unknown authority"},
		{"expired", &tls.Config{RootCAs: ca.Pool(), GetClientCertificate: always(ca.Client(expired))}, "expired certificate", "expired"},
		{"TLS 1.1", &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}, "protocol version", "unsupported versions"},
		{"the client distrusts", &tls.Config{RootCAs: rogue.Pool()}, "unknown authority", "bad certificate"},
		{"the client expects another", &tls.Config{RootCAs: ca.Pool(), ServerName: "n2"}, "not n2", "bad certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := echo(t, s.Listen(tcp(t), HTTP))
			if _, err := call(addr, tc.client); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the client is told %v, not of %q", err, tc.says)
			}
			good := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Client(pki.Leaf{Name: "alice"})}}
			if answer, err := call(addr, good); answer != "hello" {
				t.Error(answer, err)
			}
			must.Become(t, "it is logged: "+tc.logged, func() bool { return s.log.Has(tc.logged) })
			if !s.log.Has("from=127.0.0.1:") {
				t.Error("the log does not name the client:", s.log.String())
			}
		})
	}
}

// always makes a client send a certificate even if the server requests certificates of other
// authorities.
func always(c tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
}

// TestPlainClientsAreTold: a client without TLS receives an error in its own protocol.
func TestPlainClientsAreTold(t *testing.T) {
	ca := must.NewAuthority(t)
	f := must.WriteCert(t, t.TempDir(), "tls", ca.Issue(must.NodeLeaf("n1")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key})
	for _, tc := range []struct {
		protocol   Protocol
		says, want string
	}{
		{HTTP, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.0 400 Bad Request\r\n"},
		{HTTP, "POST /v1/ops HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000), "Client sent an HTTP request to an HTTPS server"},
		{Redis, "*1\r\n$4\r\nPING\r\n", "-ERR this port speaks TLS"},
		{Redis, "PING\r\n", "-ERR this port speaks TLS"},
		{Protocol{Name: "other"}, "hello, server", ""},
	} {
		conn, err := net.Dial("tcp", echo(t, s.Listen(tcp(t), tc.protocol)))
		must.Do(t, err)
		must.Do(t, conn.SetDeadline(time.Now().Add(must.BecomeMax)))
		_, err = io.WriteString(conn, tc.says)
		must.Do(t, err)
		answer, err := io.ReadAll(conn)
		if !strings.Contains(string(answer), tc.want) || tc.want == "" && len(answer) > 0 {
			t.Errorf("%s: %q, %v", tc.protocol.Name, answer, err)
		}
		conn.Close()
	}
	if !s.log.Has("it does not speak TLS") {
		t.Error(s.log.String())
	}
}

// TestHalfOpenConnectionsMakeRoom: the listener bounds the number of connections that do not finish
// their handshake, and these connections do not block other clients.
func TestHalfOpenConnectionsMakeRoom(t *testing.T) {
	ca := must.NewAuthority(t)
	f := must.WriteCert(t, t.TempDir(), "tls", ca.Issue(must.NodeLeaf("n1")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key})
	l := s.Listen(tcp(t), HTTP)
	addr := echo(t, l)
	var silent []net.Conn
	for i := range handshakesMax + 20 {
		conn, err := net.Dial("tcp", addr)
		must.Do(t, err)
		defer conn.Close()
		silent = append(silent, conn)
		if i%100 == 0 {
			if answer, err := call(addr, &tls.Config{RootCAs: ca.Pool()}); answer != "hello" {
				t.Fatalf("beside %d silent ones: %q, %v", i, answer, err)
			}
		}
	}
	if answer, err := call(addr, &tls.Config{RootCAs: ca.Pool()}); answer != "hello" {
		t.Error(answer, err)
	}
	l.mu.Lock()
	waiting := l.mu.waiting.Len()
	l.mu.Unlock()
	if waiting > handshakesMax {
		t.Errorf("%d connections wait", waiting)
	}
	must.Do(t, silent[0].SetReadDeadline(time.Now().Add(must.BecomeMax)))
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest is not closed: %v", err)
	}
}

// TestBurstOfHandshakes: all clients are served, even if more clients connect at once than may be
// in their handshake.
func TestBurstOfHandshakes(t *testing.T) {
	ca := must.NewAuthority(t)
	f := must.WriteCert(t, t.TempDir(), "tls", ca.Issue(must.NodeLeaf("n1")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key})
	l := s.Listen(tcp(t), HTTP)
	l.mu.Lock() // makes l.bound visible to the goroutine that accepts the first connection
	l.bound = 4
	l.mu.Unlock()
	addr := echo(t, l)
	const clients = 40
	failed := make(chan error, clients)
	for range clients {
		go func() { // ends with its call, awaited below
			_, err := call(addr, &tls.Config{RootCAs: ca.Pool()})
			failed <- err
		}()
	}
	for range clients {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// TestCloseEndsHandshakes: Close closes connections in their handshake, and connections that Accept
// has not returned.
func TestCloseEndsHandshakes(t *testing.T) {
	ca := must.NewAuthority(t)
	f := must.WriteCert(t, t.TempDir(), "tls", ca.Issue(must.NodeLeaf("n1")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key})
	l := s.Listen(tcp(t), HTTP)
	silent, err := net.Dial("tcp", l.Addr().String())
	must.Do(t, err)
	defer silent.Close()
	done, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: ca.Pool()})
	must.Do(t, err)
	defer done.Close()
	must.Do(t, l.Close())
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	for _, conn := range []net.Conn{silent, done} {
		must.Do(t, conn.SetReadDeadline(time.Now().Add(must.BecomeMax)))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection is open: %v", err)
		}
	}
}

// TestRotationUnderLoad: certificate and authorities change repeatedly. No client that trusts both
// authorities fails, on an existing or a new connection.
func TestRotationUnderLoad(t *testing.T) {
	cas := []*must.Authority{must.NewAuthority(t), must.NewAuthority(t)}
	dir := t.TempDir()
	f := must.WriteCert(t, dir, "tls", cas[0].Issue(must.NodeLeaf("n0")))
	both := [][]byte{cas[0].Cert(), cas[1].Cert()}
	caFile := must.ReplaceFile(t, filepath.Join(dir, "ca"), both...)
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key, CAFile: caFile, pollEvery: time.Hour})
	addr := echo(t, s.Listen(tcp(t), HTTP))
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AppendCertsFromPEM(ca.Cert())
	}
	stop, failed := make(chan struct{}), make(chan error, 4)
	for i := range 4 {
		go func() {
			config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cas[i%2].Client(pki.Leaf{Name: "alice"})}}
			lasting, err := tls.Dial("tcp", addr, config)
			for err == nil {
				var one, two string
				if one, err = say(lasting, "hello"); err == nil {
					two, err = call(addr, config)
				}
				if err == nil && (one != "hello" || two != "hello") {
					err = fmt.Errorf("answers %q, %q", one, two)
				}
				select {
				case <-stop:
					failed <- err
					return
				default:
				}
			}
			failed <- err
		}()
	}
	for round := range 20 {
		name := fmt.Sprintf("n%d", round+1)
		must.WriteCert(t, dir, "tls", cas[round%2].Issue(must.NodeLeaf(name)))
		must.ReplaceFile(t, caFile, both[round%2], both[(round+1)%2])
		must.Do(t, s.Reload())
		fresh, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, ServerName: name, Certificates: []tls.Certificate{cas[0].Client(pki.Leaf{Name: "x"})}})
		must.Do(t, err) // the server must present the new certificate
		fresh.Close()
	}
	close(stop)
	for range 4 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	// Once an authority is removed, its clients are refused.
	must.ReplaceFile(t, caFile, both[1])
	must.Do(t, s.Reload())
	if _, err := call(addr, &tls.Config{RootCAs: roots, GetClientCertificate: always(cas[0].Client(pki.Leaf{Name: "alice"}))}); err == nil {
		t.Error("an authority that is gone is trusted")
	}
}
