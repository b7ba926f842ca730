// Package client speaks countd's HTTP API.
//
// It owns the shapes of requests and answers, the deadline of one call and the
// reading of errors. It never repeats a call by itself: an increment that is
// sent twice counts twice, so only the caller knows what may be sent again
// (Backoff does it for those who may). Its invariant: a method returns nil only
// when a whole answer of status 2xx was read and understood.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// TimeoutMax is the longest deadline that the API takes.
	TimeoutMax = 60 * time.Second
	// timeoutGrace is how long past the deadline the client waits for the
	// server to say what became of the request.
	timeoutGrace = time.Second
	// responseBytesMax bounds one answer: a page of 10,000 rows of 64 columns
	// of the longest names and counts stays below it.
	responseBytesMax = 64 << 20
	// idleConnsMax keeps a connection for each call that a command has in
	// flight at most.
	idleConnsMax = 64
	dialTimeout  = 5 * time.Second
)

// ErrNoAnswer is returned when no answer came: the connection was refused,
// broke, or stayed silent past the deadline. A write may or may not have
// happened.
var ErrNoAnswer = errors.New("no answer")

// Config says where the server is and how long one call may take.
type Config struct {
	Addr    string        // http://host:port; the scheme may be left out
	Timeout time.Duration // deadline of one call, sent to the server: above 0, at most TimeoutMax
}

// Client calls one server. Its methods may be used by many goroutines.
type Client struct {
	base    string
	timeout time.Duration
	http    *http.Client
}

// New checks the config. It does not connect.
func New(cfg Config) (*Client, error) {
	base, err := ParseAddr(cfg.Addr)
	if err != nil {
		return nil, err
	}
	if cfg.Timeout <= 0 || cfg.Timeout > TimeoutMax {
		return nil, fmt.Errorf("the timeout must lie above 0 and at most at %v, not %v", TimeoutMax, cfg.Timeout)
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: idleConnsMax,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
	return &Client{base: base.String(), timeout: cfg.Timeout, http: &http.Client{Transport: transport}}, nil
}

// ParseAddr reads a server's address: http://host:port, or host:port.
func ParseAddr(addr string) (*url.URL, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(strings.TrimSuffix(addr, "/"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("the address %q is not of the form http://host:port", addr)
	}
	return u, nil
}

// Addr returns the server's address as http://host:port.
func (c *Client) Addr() string { return c.base }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request. body is sent as JSON; nil sends none.
type call struct {
	method string
	path   string // escaped, with its query
	token  string // of a write that a read must see; "" for none
	body   []byte
}

// do sends the call and decodes the answer into out, unless out is nil.
func (c *Client) do(ctx context.Context, req call, out any) error {
	status, body, header, err := c.send(ctx, req)
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return decodeError(status, header, body)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("cannot read the answer of %s %s: %w", req.method, c.base+req.path, err)
	}
	return nil
}

// send makes the round trip and reads the answer whole.
func (c *Client) send(ctx context.Context, req call) (status int, body []byte, header http.Header, err error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout+timeoutGrace)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, req.method, c.base+req.path, bytes.NewReader(req.body))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("cannot make a request: %w", err)
	}
	r.Header.Set("Countd-Timeout", c.timeout.String())
	if req.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if req.token != "" {
		r.Header.Set("Countd-Token", req.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, nil, nil, c.noAnswer(ctx, err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, responseBytesMax+1))
	if err != nil {
		return 0, nil, nil, c.noAnswer(ctx, err)
	}
	if len(body) > responseBytesMax {
		return 0, nil, nil, fmt.Errorf("cannot read the answer of %s: it is larger than %d bytes", c.base+req.path, responseBytesMax)
	}
	return resp.StatusCode, body, resp.Header, nil
}

// noAnswer tells the caller's own cancellation from a server that is not there.
func (c *Client) noAnswer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // its text repeats the address
	}
	return fmt.Errorf("%w from %s: %w", ErrNoAnswer, c.base, err)
}
