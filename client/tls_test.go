package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTLS: a server is verified by the authorities of the config, which make https the
// scheme of addresses without one.
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
		if _, err := c.Raw(context.Background(), "/v1/version"); err != nil {
			t.Error(addr, err)
		}
		c.Close()
	}
	for _, addr := range []string{server.URL, "http://" + bare} {
		c, err := New(Config{Addrs: []string{addr}, Retry: Retry{For: RetryNever}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Raw(context.Background(), "/v1/version"); err == nil {
			t.Error(addr, "is trusted")
		}
		c.Close()
	}
}
