// Package client implements countd's HTTP API for Go programs that count and read. The calls of
// operators are in package client/admin.
//
// Package client owns the types of requests and answers, the deadline of a call, retries, and the
// choice among a cluster's addresses. It never repeats an increment in a way that could count
// twice. It repeats a write only if every try carries the same Idempotency-Key, or the same
// producer's name and number.
//
// Invariant: a method returns nil only after it has decoded a whole answer of status 2xx.
// An error that does not wrap ErrUnknown means that the write did not happen.
//
// Reads are not hedged: the client sends no second read while the first is in flight. A node that
// cannot answer a read forwards it to a node that can. Under load, a second copy of a read would
// take processor time from writes. A hedge would only save the wait for a node that was paused or
// cut off. That wait ends at Config.Timeout. It happens once, because later calls use the next
// address.
//
// A Client makes one call at a time for each caller. A Writer is for streams of increments:
// it merges queued increments and sends them in batches.
package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// TimeoutMax is the longest deadline that the API accepts.
	TimeoutMax = 60 * time.Second
	// TimeoutDefault is the deadline that the API uses if a request names none.
	TimeoutDefault = 5 * time.Second
	// AddrsMax is the maximum number of Config.Addrs. A call may try all of them before it waits.
	AddrsMax = 16
	// idleConnsMax bounds the idle connections to one address. It is the maximum number of
	// requests that a Writer has in flight.
	idleConnsMax = 64
	dialTimeout  = 5 * time.Second
)

// Config configures a Client.
type Config struct {
	// Addrs are the servers of one cluster: http://host:port or https://host:port; the scheme is
	// optional. Calls use one address until it fails, and then the next.
	Addrs   []string
	Timeout time.Duration // deadline of one try, sent to the server: at most TimeoutMax; 0 for TimeoutDefault
	Retry   Retry         // how each call is repeated
	// TLS is for servers at https:// addresses. RootCAs verify the servers' certificates, and
	// Certificates identify this client to servers that request a certificate. nil uses the
	// system's authorities and no client certificate. If TLS is set, an address without a scheme
	// means https.
	TLS *tls.Config
	// Token authenticates each call; "" for none. A server without --auth ignores it. If any of
	// Addrs has TLS, the client sends the token unencrypted only to those Addrs that are without
	// TLS.
	Token string
	// If TokenToAddrs is set, the client sends the token unencrypted only to Addrs, even if none of
	// Addrs has TLS.
	TokenToAddrs bool
}

// Client calls the servers of one cluster. It is safe for concurrent use.
type Client struct {
	bases   []string
	current atomic.Uint32 // the address in use is bases[current % len(bases)]
	timeout time.Duration
	retry   Retry
	http    *http.Client
}

// New checks the config. It does not connect.
func New(cfg Config) (*Client, error) {
	if len(cfg.Addrs) == 0 || len(cfg.Addrs) > AddrsMax {
		return nil, fmt.Errorf("a client needs 1 to %d addresses, not %d", AddrsMax, len(cfg.Addrs))
	}
	c := &Client{timeout: cfg.Timeout, retry: cfg.Retry}
	for _, addr := range cfg.Addrs {
		if cfg.TLS != nil && !strings.Contains(addr, "://") {
			addr = "https://" + addr
		}
		base, err := ParseAddr(addr)
		if err != nil {
			return nil, err
		}
		c.bases = append(c.bases, base.String())
	}
	if c.timeout == 0 {
		c.timeout = TimeoutDefault
	}
	if c.timeout < 0 || c.timeout > TimeoutMax {
		return nil, fmt.Errorf("the timeout must lie above 0 and at most at %v, not %v", TimeoutMax, cfg.Timeout)
	}
	if !validToken(cfg.Token) {
		return nil, errors.New("the token has characters that no token has")
	}
	var transport http.RoundTripper = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: idleConnsMax,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		TLSClientConfig:     cfg.TLS.Clone(),
	}
	if cfg.Token != "" {
		toBases := cfg.TokenToAddrs || slices.ContainsFunc(c.bases, func(base string) bool { return strings.HasPrefix(base, "https://") })
		transport = bearer{next: transport, token: cfg.Token, bases: c.bases, toBases: toBases}
	}
	c.http = &http.Client{Transport: transport}
	return c, nil
}

const portDefault = "7400"

// ParseAddr parses a server's address. In http://host:port and https://host:port, a missing
// port means 80 or 443. host:port and host mean http, and a missing port means 7400.
func ParseAddr(addr string) (*url.URL, error) {
	bare := !strings.Contains(addr, "://")
	if bare {
		addr = "http://" + addr
	}
	u, err := url.Parse(strings.TrimSuffix(addr, "/"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("the address %q is not of the form http://host:port", addr)
	}
	if bare && u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), portDefault)
	}
	return u, nil
}

// Addr returns the URL of the address in use, such as http://host:port.
func (c *Client) Addr() string { return c.base(c.current.Load()) }

// Addrs returns the URLs of all addresses.
func (c *Client) Addrs() []string { return slices.Clone(c.bases) }

func (c *Client) base(current uint32) string { return c.bases[int(current)%len(c.bases)] }

// Close drops idle connections. The caller closes the Writers of the client first.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// elsewhere reports whether another server may succeed where this one failed.
func elsewhere(err error) bool {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusBadGateway || refused.needsTLS()
	}
	return errors.Is(err, ErrNoAnswer)
}

// bearer adds a token to each request, redirects included, because a node redirects to other
// nodes of its cluster.
type bearer struct {
	next  http.RoundTripper
	token string
	bases []string // URLs of the client's addresses, such as http://host:port
	// If toBases is set, an address without TLS gets the token only if the address is in bases.
	// Some bases may lack TLS while a cluster turns TLS on.
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
