package api

import (
	"bytes"
	"context"
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/client"
	"github.com/countd/countd/sources"
)

func listSources(until context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	all, err := s.cfg.Sources.List(until)
	return map[string]any{"sources": append([]sources.Source{}, all...)}, err
}

// ofSource returns a call on the source in the path.
func ofSource(do func(of Sources, until context.Context, name string) (*sources.Source, error)) handler {
	return rare(func(until context.Context, s *Server, r *request, _ *nothing) (*sources.Source, error) {
		return do(s.cfg.Sources, until, string(r.name))
	})
}

// withSource returns a call whose body package sources reads. The body may be YAML.
func withSource(do func(until context.Context, of Sources, r *request, body []byte) (*sources.Source, error)) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		until, cancel := context.WithDeadline(context.Background(), r.deadline)
		defer cancel()
		of, err := do(until, s.cfg.Sources, r, bytes.Clone(ctx.Request.Body()))
		if err != nil {
			return err
		}
		return answerJSON(ctx, of)
	}
}

func putSource(until context.Context, of Sources, r *request, body []byte) (*sources.Source, error) {
	return of.Put(until, string(r.name), body)
}

// restoreSource creates a source from a backup.
func restoreSource(until context.Context, of Sources, _ *request, body []byte) (*sources.Source, error) {
	return of.RestoreSaved(until, body)
}

func seekSource(until context.Context, s *Server, r *request, body *struct {
	Positions map[uint32]position `json:"positions"`
}) (*sources.Source, error) {
	to := map[uint32]string{}
	for partition, at := range body.Positions {
		to[partition] = string(at)
	}
	if len(to) == 0 {
		return nil, invalid("positions", "empty")
	}
	return s.cfg.Sources.Seek(until, string(r.name), to)
}

func deleteSource(until context.Context, s *Server, r *request, _ *nothing) (any, error) {
	err := s.cfg.Sources.Delete(until, string(r.name))
	return struct {
		Name    string `json:"name"`
		Deleted bool   `json:"deleted"`
	}{string(r.name), true}, err
}

func saveSources(until context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	all, err := s.cfg.Sources.Save(until)
	return map[string]any{"sources": all}, err
}

// The calls below serve callers that compare counts with a source of truth: what a source has
// counted, rows with the positions of their shards, and corrections.

func pastOfSource(until context.Context, s *Server, r *request, body *struct {
	Keyspace  string   `json:"keyspace"`
	Partition uint32   `json:"partition"`
	From      position `json:"from"`
}) (*sources.Past, error) {
	return s.cfg.Sources.Past(until, string(r.name), body.Keyspace, body.Partition, string(body.From))
}

// sourceIDsMax bounds the ids of one call of rowsOfSource. The call costs two log entries in each
// shard, however many rows it reads.
const sourceIDsMax = 10_000

func rowsOfSource(until context.Context, s *Server, r *request, body *struct {
	Keyspace string      `json:"keyspace"`
	IDs      []client.ID `json:"ids"`
}) (*sources.Rows, error) {
	if len(body.IDs) > sourceIDsMax {
		return nil, invalid("ids", fmt.Sprintf("more than %d", sourceIDsMax))
	}
	for _, id := range body.IDs {
		r.ids = append(r.ids, uint64(id))
	}
	return s.cfg.Sources.Rows(until, string(r.name), body.Keyspace, r.ids)
}

// correct serves POST /v1/counters/{keyspace}/correct: incr, counted as a correction.
func correct(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := s.change(ctx, r, changeAdd); err != nil {
		return err
	}
	if !r.write.Duplicate {
		s.metrics.Corrected(&r.write, r.keyspace.Name)
	}
	return nil
}
