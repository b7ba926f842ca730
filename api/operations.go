package api

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/docs"
)

// nodeRoutes are the calls of probes, and the calls about the serving node.
func nodeRoutes() []route {
	public, known, status := auth.Public.Need(), auth.Known.Need(), auth.Status.Need()
	return []route{
		{"GET /healthz", "healthz", does{exempt | takesAnything, public, healthz}},
		{"GET /readyz", "readyz", does{exempt | takesAnything, public, readyz}},
		{"GET /metrics", "metrics", does{exempt | takesAnything, status, gather}},
		{"GET /", "root", does{exempt, known, operated(operate.Root)}},
		{"GET /openapi.yaml", "openapi", does{exempt, known, openAPI}},
		{"GET /v1/whoami", "whoami", does{exempt | takesNobody, known, operated(operate.WhoAmI)}},
		{"GET /v1/version", "version", does{exempt, known, operated(operate.ProgramVersion)}},
		{"GET /v1/cluster", "cluster", does{exempt, status, operated(operate.ClusterStatus)}},
	}
}

func healthz(s *Server, ctx *fasthttp.RequestCtx, _ *request) error {
	answer(ctx, func(dst []byte) []byte { return append(dst, `{"healthy":true}`...) })
	return nil
}

// readyz reports whether clients should send requests to this node. If they should not, the answer
// has the error code that a read would get, or else not_ready. If tokens are enforced, a probe
// without a token gets no reason.
func readyz(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	err := s.node().Ready()
	if err == nil {
		answer(ctx, func(dst []byte) []byte { return append(dst, `{"ready":true}`...) })
		return nil
	}
	if a := s.cfg.Auth; a != nil && a.Enforces() {
		token, _ := bearer(&ctx.Request.Header)
		if _, why := a.Identify(token, r.received); why != auth.Granted {
			return &fault{status: fasthttp.StatusServiceUnavailable, code: codeNotReady, message: "the node is not ready; a token is needed to learn why"}
		}
	}
	f := &fault{status: fasthttp.StatusServiceUnavailable, code: codeNotReady, message: err.Error()}
	for _, b := range backendFaults {
		if b.status == f.status && errors.Is(err, b.err) {
			f.code = b.code
		}
	}
	return f
}

// openAPI answers docs/openapi.yaml.
func openAPI(s *Server, ctx *fasthttp.RequestCtx, _ *request) error {
	answerLong(ctx, len(docs.OpenAPI), func(dst []byte) []byte { return append(dst, docs.OpenAPI...) })
	ctx.SetContentType("application/yaml")
	return nil
}

// gather answers with the registry's metrics in Prometheus' text format.
func gather(s *Server, ctx *fasthttp.RequestCtx, _ *request) error {
	families, err := s.cfg.Registry.Gather()
	if err != nil {
		return fmt.Errorf("cannot gather metrics: %w", err)
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, format)
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return fmt.Errorf("cannot encode metrics: %w", err)
		}
	}
	answer(ctx, func(dst []byte) []byte { return append(dst, text.Bytes()...) })
	ctx.SetContentType(string(format))
	return nil
}
