package api

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/inbox"
)

// Config configures a Server. A zero bound or timeout means its default.
type Config struct {
	Backend Backend         // required
	Admin   operate.Admin   // required
	Sources operate.Sources // required

	Outboxes inbox.OutboxKeep // bounds of authors' outboxes

	// If Listener is not nil, the server serves it, and Shutdown closes it. Otherwise New listens
	// on Addr, host:port; port 0 means any port.
	Listener net.Listener
	Addr     string
	// Scheme is the URL scheme of redirects to other nodes: "https" if clients of the cluster need
	// TLS, "" for http.
	Scheme string

	// Console answers requests for the console's pages, which need no token, and returns false for
	// other requests; nil for no console.
	Console func(*fasthttp.RequestCtx) bool

	// AllowedHosts has the names, with or without a port, that are allowed in a request's Host. IP
	// literals and localhost are always allowed. gate.AnyHost or a nil list allows every Host.
	AllowedHosts []string

	// ReadTimeout bounds the time from a request's first byte to the end of its headers, and then
	// the time to the end of its body. If the request's own timeout is shorter, it bounds the body
	// instead.
	ReadTimeout time.Duration
	// WriteTimeout bounds the time in which a client accepts an answer.
	WriteTimeout time.Duration
	// IdleTimeout is the time for which a connection without a request stays open.
	IdleTimeout time.Duration

	// BodyBytesMax bounds a request's body; a larger body gets 413. The largest useful body,
	// 10,000 ops on four columns each, is under 2 MiB.
	BodyBytesMax int
	// BodiesBytesMax bounds the sum of the bodies that are being read or served; a request beyond
	// it gets 429. Bodies up to 8 KiB do not count, because each connection has at most one.
	BodiesBytesMax int
	// HeaderBytesMax bounds the request line with the headers, and is the size of each
	// connection's read buffer.
	HeaderBytesMax int
	// ConnsMax bounds the open connections. The server answers a further connection with 503 and
	// closes it.
	ConnsMax int
	// InFlightMax bounds the requests under /v1 that are being served; a further request gets 429.
	// A request in flight holds its body, rows and answer.
	InFlightMax int

	// Auth identifies callers and checks their rights; nil lets everybody do everything.
	Auth *auth.Authorizer
	// Audit receives admin actions; nil for none.
	Audit *auth.AuditLog

	Version  string               // for the answer of /v1/version
	Registry *prometheus.Registry // required: /metrics serves it, with the api's own metrics
	Logger   *slog.Logger         // required
}

// withDefaults returns the config with defaults for zero values, or an error if it is invalid.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Backend == nil:
		return c, errors.New("config: no Backend")
	case c.Admin == nil:
		return c, errors.New("config: no Admin")
	case c.Sources == nil:
		return c, errors.New("config: no Sources")
	case c.Registry == nil:
		return c, errors.New("config: no Registry")
	case c.Logger == nil:
		return c, errors.New("config: no Logger")
	case c.Listener == nil && c.Addr == "":
		return c, errors.New("config: neither Listener nor Addr")
	}
	c.Scheme = cmp.Or(c.Scheme, "http")
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 10*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 60*time.Second)
	if least := min(c.ReadTimeout, c.WriteTimeout, c.IdleTimeout); least < 0 {
		return c, fmt.Errorf("config: a timeout is %s", least)
	}
	c.BodyBytesMax = cmp.Or(c.BodyBytesMax, 8<<20)
	c.BodiesBytesMax = cmp.Or(c.BodiesBytesMax, 32<<20)
	c.HeaderBytesMax = cmp.Or(c.HeaderBytesMax, 8<<10)
	c.ConnsMax = cmp.Or(c.ConnsMax, 8192)
	c.InFlightMax = cmp.Or(c.InFlightMax, 4096)
	if least := min(c.BodyBytesMax, c.BodiesBytesMax, c.HeaderBytesMax, c.ConnsMax, c.InFlightMax); least < 0 {
		return c, fmt.Errorf("config: a bound is %d", least)
	}
	return c, nil
}
