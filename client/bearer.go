package client

import (
	"net/http"
	"slices"
	"strings"
)

// bearer adds a token to each request, redirects included, because a node redirects to other
// nodes of its cluster.
type bearer struct {
	next  http.RoundTripper
	token string
	bases []string // addresses of the client, as http://host:port
	// With toBases, an address without TLS gets the token only if it is in bases. Some bases may
	// have no TLS while a cluster turns it on.
	toBases bool
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.toBases && r.URL.Scheme != "https" && !slices.Contains(b.bases, r.URL.Scheme+"://"+r.URL.Host) {
		return b.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// CloseIdleConnections lets http.Client close the connections of the transport.
func (b bearer) CloseIdleConnections() {
	if next, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// validToken reports whether a token fits a header.
func validToken(token string) bool {
	return !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}
