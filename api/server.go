// Package api serves the node's HTTP API. It owns the public contract (docs/openapi.yaml):
// paths, headers, JSON formats, status codes, and the bounds of requests. It never
// routes, stores or decides anything about counts; the Backend does.
//
// Invariant: the server finds every fault of a request before it calls the backend. So a 4xx other
// than 429 and an overflow means that nothing was applied. Nothing refers to a request once its
// handler has returned.
package api

import (
	"log/slog"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/listen"
	"github.com/countd/countd/api/metric"
)

// Server serves the API on one listener. Create it with New, run Serve once, and end it with
// Shutdown.
type Server struct {
	cfg      Config
	limited  *slog.Logger // for events that many requests cause
	attached atomic.Pointer[node]
	metrics  *metric.Metrics
	routes   *routes
	requests requestPool
	listener *listen.Listener
	http     *fasthttp.Server

	overloads overloads
	admission *admission
	bodies    bodies
	hosts     []string // names that checkHost allows
	anyHost   bool
	// lastHost is a host that checkHost allowed: most requests have the host of the previous
	// one, and comparing it allocates nothing.
	lastHost atomic.Pointer[string]
	inFlight atomic.Int64 // requests whose body has arrived, including those of exempt endpoints
	retiring atomic.Bool  // each answer closes its connection
}

func (s *Server) node() *node { return s.attached.Load() }
