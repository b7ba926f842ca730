package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/names"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// New checks the config, registers the metrics and listens. Connections wait
// until Serve is called.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := gate.NewMetrics(cfg.Registry, cfg.Version)
	if err != nil {
		return nil, err
	}
	ln := cfg.Listener
	if ln == nil {
		if ln, err = net.Listen("tcp", cfg.Addr); err != nil {
			return nil, fmt.Errorf("cannot listen for HTTP: %w", err)
		}
	}
	s := &Server{cfg: cfg, limited: new(program.LogLimiter).Logger(cfg.Logger), metrics: m, routes: newRoutes(m), listener: gate.NewListener(gate.ListenerConfig{
		Listener: ln, Port: "http", ConnsMax: cfg.ConnsMax, WriteTimeout: cfg.WriteTimeout, Refusal: refusal(), Conns: m.Conns, Refused: m.ConnsRefused, Logger: cfg.Logger,
	}),
		overloads: newOverloads(m), admission: gate.NewAdmission(), hosts: gate.NewHosts(cfg.AllowedHosts),
		bodies: gate.Budget{Max: int64(cfg.BodiesBytesMax)}}
	s.Attach(cfg.Backend)
	s.http = &fasthttp.Server{
		Handler:        s.serve,
		ErrorHandler:   s.refuse,
		HeaderReceived: s.awaitBody,
		ExpectHandler:  s.expect,
		Name:           serverName,
		Logger:         printfLogger{cfg.Logger},

		ReadTimeout:  cfg.ReadTimeout,
		WriteTimeout: cfg.WriteTimeout,
		IdleTimeout:  cfg.IdleTimeout,
		// The handler reads bodies above gate.SmallBodyBytesMax, and checks their bounds.
		StreamRequestBody:  true,
		MaxRequestBodySize: max(cfg.BodyBytesMax, gate.SmallBodyBytesMax),
		ReadBufferSize:     cfg.HeaderBytesMax,
		// The listener bounds the connections. Allow more workers than connections, because a
		// worker becomes free only a moment after the listener has removed its connection.
		Concurrency: 2 * cfg.ConnsMax,

		CloseOnShutdown:              true,
		DisablePreParseMultipartForm: true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
	}
	return s, nil
}

// refusal returns the complete answer to a client whose connection is one too many.
func refusal() []byte {
	f := &fault{status: 503, code: codeOverloaded, message: "too many connections"}
	body := append(f.appendJSON(nil), '\n')
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nServer: %s\r\nContent-Type: %s\r\n"+
		"Retry-After: %d\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		serverName, gate.ContentTypeJSON, retryAfter, len(body), body)
}

// Attach sets the backend for later calls. The server may already be serving.
func (s *Server) Attach(b Backend) {
	s.attached.Store(&node{Backend: b, names: names.New(b), unread: inbox.NewNumbers(b), timelines: inbox.NewTimelines(b, s.cfg.Outboxes)})
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves until Shutdown is called, and then returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); err != nil {
		return fmt.Errorf("cannot serve HTTP: %w", err)
	}
	return nil
}

// Retire makes each further answer close its connection, so that clients and proxies connect to
// another node. The server accepts connections until Shutdown.
func (s *Server) Retire() { s.retiring.Store(true) }

// Shutdown stops accepting connections, closes each open connection when its request ends, and
// waits until all are closed. When ctx ends, it closes the remaining connections.
func (s *Server) Shutdown(ctx context.Context) error {
	closeErr := s.listener.Close()
	err := s.http.ShutdownWithContext(ctx)
	if errors.Is(err, net.ErrClosed) {
		err = nil // ignore the listener's error: Shutdown itself has closed the listener
	}
	s.listener.CloseConns()
	if err != nil {
		return fmt.Errorf("cannot finish the requests in flight: %w", err)
	}
	if closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		return fmt.Errorf("cannot close the HTTP listener: %w", closeErr)
	}
	return nil
}

// serve handles one request on its connection's goroutine.
func (s *Server) serve(ctx *fasthttp.RequestCtx) {
	r := s.requests.acquire()
	r.received = ctx.Time()
	e, err := s.routes.none, error(nil)
	if problem := gate.FramingProblem(&ctx.Request.Header); problem != "" {
		f := invalid("request", problem)
		f.closes, err = true, f
	} else if !s.hosts.Allows(ctx.Request.Header.Host()) {
		err = errHost
	}
	switch {
	case err != nil:
	case s.cfg.Console != nil && s.cfg.Console(ctx):
		e = s.routes.console
		s.discard(ctx)
	default:
		var to target
		e, to, err = s.routes.find(ctx.Method(), ctx.URI().PathOriginal())
		if refused := s.authorize(ctx, r, e, to); refused != nil { // authorize even a request without an endpoint
			err = refused
		}
		if err == nil {
			err = s.call(ctx, r, e, to)
		}
	}
	if err != nil {
		if errors.Is(err, errs.ErrOverloaded) {
			s.holdBack(r)
		}
		s.fail(ctx, r, e, err)
		s.discard(ctx)
	}
	if e.takes&audited != 0 || e.need.Access == auth.Admin {
		s.audit(ctx, r, e, err)
	}
	if s.retiring.Load() {
		ctx.SetConnectionClose()
	}
	e.observers.Observe(ctx.Response.StatusCode(), time.Since(r.received), len(r.body), answerBytes(ctx))
	ctx.Request.ResetBody() // ctx must not keep the body, whose memory r reuses
	s.bodies.Release(r.held)
	if !errors.Is(err, errPanicked) {
		s.requests.release(r)
	}
}

// answerBytes returns the size of an answer's body. It does not read a streamed body.
func answerBytes(ctx *fasthttp.RequestCtx) int {
	if ctx.Response.IsBodyStream() {
		return ctx.Response.Header.ContentLength()
	}
	return len(ctx.Response.Body())
}

// call parses the request of an endpoint and runs it. It logs a panic with its stack and returns
// errPanicked. The caller must then not pool the request, because its state is unknown.
func (s *Server) call(ctx *fasthttp.RequestCtx, r *request, e *endpoint, to target) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.Panics.Inc()
			s.limited.Error("request handler panicked",
				"endpoint", e.name, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	if r.timeout, err = gate.TimeoutOf(&ctx.Request.Header); err != nil && e.takes&takesAnything == 0 {
		return err
	}
	n := ctx.Request.Header.ContentLength()
	if s.tooLarge(e, n) {
		return s.bodyTooLarge()
	}
	in := arrival{endpoint: e, bodyBytes: n, timeout: r.timeout, write: s.admission.Write(n)}
	if err := s.admit(&in); err != nil {
		return err
	}
	if err := s.receive(ctx, r, e); err != nil {
		return err
	}
	if !gate.IsSmall(n) { // check again, because other requests may have arrived while the body arrived
		if err := r.reauthorize(e, to); err != nil {
			return err
		}
		if err := s.crowded(&in); err != nil {
			return err
		}
	}
	inFlight := s.inFlight.Add(1)
	s.metrics.InFlight.Inc()
	defer func() {
		s.inFlight.Add(-1)
		s.metrics.InFlight.Dec()
	}()
	if e.takes&exempt == 0 && inFlight > int64(s.cfg.InFlightMax) {
		return s.overloads.inFlight
	}
	if e.takes&takesWrite != 0 {
		in.write.Enter()
		defer func() { in.write.Leave(r.received, wasTried(err)) }()
	}
	node := s.node()
	r.texts.Names = node.names
	if err := r.readHead(ctx, node, to, e); err != nil {
		return err
	}
	err = e.call(s, ctx, r)
	for errors.Is(err, errUnnamed) { // each time, r has learned more of its ids
		if err = name(r); err == nil {
			err = e.call(s, ctx, r)
		}
	}
	if err != nil && e.writesIDs() {
		err = r.withOps(err)
	}
	return err
}

// errPanicked is returned by call for a logged panic.
var errPanicked = errors.New("request handler panicked")

// fail answers an error of an endpoint.
func (s *Server) fail(ctx *fasthttp.RequestCtx, r *request, e *endpoint, err error) {
	f, foreseen := faultOf(err)
	if f.code == codeUnknownKeyspace {
		f = f.withKeyspaces(s.node().Keyspaces())
	}
	if _, partial := errors.AsType[*shard.PartialError](err); partial {
		f.texts = r.texts // f is of this request alone
	}
	if e.writesRows() {
		f.ofWrite(e.takes&(takesOps|takesColumn) != 0)
	}
	if !foreseen && !errors.Is(err, errPanicked) {
		s.limited.Error("request failed",
			"method", string(ctx.Method()), "path", s.pathOf(ctx), "err", err)
	}
	if f.refused != nil {
		f.refused.Inc()
	}
	answerFault(ctx, f)
}

// refuse answers a request that fasthttp could not read. The connection then closes.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, err error) {
	f := unreadable(err)
	answerFault(ctx, f)
	s.routes.none.observers.Observe(f.status, 0, 0, len(ctx.Response.Body()))
}

// printfLogger receives fasthttp's log lines, which are about faults of connections that clients
// or the network have caused.
type printfLogger struct{ logger *slog.Logger }

func (l printfLogger) Printf(format string, args ...any) {
	l.logger.Debug("http: " + fmt.Sprintf(format, args...))
}
