package client

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTLS checks that a client with TLS.RootCAs verifies the server, and uses https for addresses
// without a scheme.
func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	bare := strings.TrimPrefix(server.URL, "https://")
	for _, addr := range []string{server.URL, bare} {
		c, err := New(Config{Addrs: []string{addr}, TLS: &tls.Config{RootCAs: roots}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Keyspaces(t.Context()); err != nil {
			t.Error(addr, err)
		}
		c.Close()
	}
	for _, addr := range []string{server.URL, "http://" + bare} {
		c, err := New(Config{Addrs: []string{addr}, Retry: Retry{For: RetryNever}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Keyspaces(t.Context()); err == nil {
			t.Error(addr, "is trusted")
		}
		c.Close()
	}
}

// TestTokenOverPlainConnections checks where a client sends its token without TLS. The client sends
// the token to addresses that its configuration names without TLS, whatever their order. It sends
// the token to other addresses only if no address of its configuration has TLS and TokenToAddrs is
// not set. A redirect cannot change that.
func TestTokenOverPlainConnections(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(r.Header.Get("Authorization"))) })
	named, other := httptest.NewServer(echo), httptest.NewServer(echo)
	defer named.Close()
	defer other.Close()
	withTLS := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		echo(w, r)
	}))
	defer withTLS.Close()
	roots := x509.NewCertPool()
	roots.AddCert(withTLS.Certificate())
	for _, one := range []struct {
		name  string
		addrs []string
		url   string
		want  string
	}{
		{"TLS", []string{withTLS.URL, named.URL}, withTLS.URL, "Bearer secret"},
		{"a plain address after one with TLS", []string{withTLS.URL, named.URL}, named.URL, "Bearer secret"},
		{"a plain address before one with TLS", []string{named.URL, withTLS.URL}, named.URL, "Bearer secret"},
		{"a redirect to a plain address", []string{withTLS.URL, named.URL}, withTLS.URL + "?to=" + named.URL, "Bearer secret"},
		{"a redirect to another one", []string{withTLS.URL, named.URL}, withTLS.URL + "?to=" + other.URL, ""},
		{"another one", []string{named.URL, withTLS.URL}, other.URL, ""},
		{"another one, without TLS", []string{named.URL}, other.URL, "Bearer secret"},
		{"another one, without TLS, to addresses only", []string{named.URL}, other.URL, ""},
	} {
		t.Run(one.name, func(t *testing.T) {
			c, err := New(Config{
				Addrs: one.addrs, TLS: &tls.Config{RootCAs: roots}, Token: "secret", TokenToAddrs: strings.HasSuffix(one.name, "only"),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			answer, err := c.http.Get(one.url)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if got, err := io.ReadAll(answer.Body); err != nil || string(got) != one.want {
				t.Errorf("the server got %q, %v, want %q", got, err, one.want)
			}
		})
	}
}

// TestPlainAddressOfAServerWithTLS checks that a client tries its next address if the configuration
// names a server without TLS but the server has TLS.
func TestPlainAddressOfAServerWithTLS(t *testing.T) {
	withTLS := httptest.NewTLSServer(http.NotFoundHandler())
	defer withTLS.Close()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("{}")) }))
	defer plain.Close()
	without := strings.Replace(withTLS.URL, "https://", "http://", 1)
	for _, one := range []struct {
		addrs []string
		good  bool
	}{
		{[]string{without, plain.URL}, true},
		{[]string{plain.URL, without}, true},
		{[]string{without}, false},
	} {
		c, err := New(Config{Addrs: one.addrs, Retry: Retry{For: RetryNever}})
		if err != nil {
			t.Fatal(err)
		}
		_, read := c.Keyspaces(t.Context())
		_, wrote := c.Set(t.Context(), "posts", nil, WriteOptions{})
		for _, err := range []error{read, wrote} {
			if (err == nil) != one.good || err != nil && !strings.Contains(err.Error(), "HTTPS server") {
				t.Errorf("%v: %v", one.addrs, err)
			}
		}
		c.Close()
	}
}
