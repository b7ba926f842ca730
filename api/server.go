// Package api serves the node's HTTP API. It owns the public contract (docs/openapi.yaml): paths,
// headers, JSON formats, status codes, and the bounds of requests. It never stores or routes
// counts; the Backend does.
//
// Invariant: the server finds every fault of a request before it calls the backend. So after a
// 4xx, except a 429 or an overflow, nothing was applied. No reference to a request remains after
// its handler has returned.
package api

import (
	"log/slog"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
)

// Server serves the API on one listener. Create it with New, run Serve once, and end it with
// Shutdown.
type Server struct {
	cfg      Config
	limited  *slog.Logger // for events that many requests cause
	attached atomic.Pointer[node]
	metrics  *gate.Metrics
	routes   *routes
	requests requestPool
	listener *gate.Listener
	http     *fasthttp.Server

	overloads overloads
	admission *gate.Admission
	bodies    gate.Budget
	hosts     *gate.Hosts
	inFlight  atomic.Int64 // requests whose body has arrived, including those of exempt endpoints
	retiring  atomic.Bool  // set by Retire: each answer closes its connection
}

func (s *Server) node() *node { return s.attached.Load() }
