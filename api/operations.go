package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/docs"
	"github.com/countd/countd/shard"
)

func (s *Server) healthz(ctx *fasthttp.RequestCtx, _ *request) error {
	answer(ctx, func(dst []byte) []byte { return append(dst, `{"healthy":true}`...) })
	return nil
}

// readyz answers whether clients should send requests to this node. The reason against it has the
// code that a read would get, or not_ready. If tokens are enforced, a probe without a token gets no
// reason.
func (s *Server) readyz(ctx *fasthttp.RequestCtx, r *request) error {
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

// root answers links to the API, for a person with a browser or curl.
func root(_ context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	type links struct {
		OpenAPI   string `json:"openapi"`
		Keyspaces string `json:"keyspaces"`
		Cluster   string `json:"cluster"`
		Health    string `json:"health"`
		Ready     string `json:"ready"`
		Metrics   string `json:"metrics"`
	}
	return struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Links   links  `json:"links"`
	}{"countd", s.cfg.Version, links{"/openapi.yaml", "/v1/keyspaces", "/v1/cluster", "/healthz", "/readyz", "/metrics"}}, nil
}

// openAPI answers the contract of the public API.
func (s *Server) openAPI(ctx *fasthttp.RequestCtx, _ *request) error {
	answerLong(ctx, len(docs.OpenAPI), func(dst []byte) []byte { return append(dst, docs.OpenAPI...) })
	ctx.SetContentType("application/yaml")
	return nil
}

func programVersion(_ context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	return map[string]any{"version": s.cfg.Version}, nil
}

func clusterStatus(_ context.Context, s *Server, _ *request, _ *nothing) (shard.Status, error) {
	status := s.node().Status()
	status.Nodes = append([]shard.NodeStatus{}, status.Nodes...)
	status.Groups = append([]shard.GroupStatus{}, status.Groups...)
	return status, nil
}

// gather answers the registry's metrics as Prometheus text.
func (s *Server) gather(ctx *fasthttp.RequestCtx, _ *request) error {
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
