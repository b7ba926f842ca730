package api

import (
	"context"
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/shard"
)

// listKeyspaces answers from this node's copy of the catalog. For a linearizable read, or
// one with a bound, it first waits until the copy is as new as the leader's.
func (s *Server) listKeyspaces(ctx *fasthttp.RequestCtx, r *request) error {
	if r.read.Consistency == shard.Linearizable || r.read.MaxStaleness > 0 {
		until, cancel := context.WithDeadline(context.Background(), r.deadline)
		defer cancel()
		if err := s.node().CatchUp(until); err != nil {
			return fmt.Errorf("cannot list keyspaces: %w", err)
		}
	}
	list := struct {
		Keyspaces []*shard.Keyspace `json:"keyspaces"`
	}{append([]*shard.Keyspace{}, s.node().Keyspaces()...)}
	return answerJSON(ctx, list)
}

func (s *Server) createKeyspace(ctx *fasthttp.RequestCtx, r *request) error {
	want, err := r.decodeKeyspace(ctx.Request.Body())
	if err != nil {
		return err
	}
	// The context of the request is fasthttp's, which the backend must not keep.
	until, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	made, err := s.node().CreateKeyspace(until, want)
	if err != nil {
		return fmt.Errorf("cannot create keyspace: %w", err)
	}
	return answerJSON(ctx, made)
}

func (s *Server) addColumns(ctx *fasthttp.RequestCtx, r *request) error {
	columns, floors, err := r.decodeNewColumns(ctx.Request.Body())
	if err != nil {
		return err
	}
	until, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	changed, err := s.node().AddColumns(until, string(r.name), columns, floors)
	if err != nil {
		return fmt.Errorf("cannot add columns: %w", err)
	}
	return answerJSON(ctx, changed)
}

func (s *Server) setEverywhere(ctx *fasthttp.RequestCtx, r *request) error {
	everywhere, err := r.decodeFlag(ctx.Request.Body(), "everywhere")
	if err != nil {
		return err
	}
	until, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	changed, err := s.node().SetEverywhere(until, string(r.name), everywhere)
	if err != nil {
		return fmt.Errorf("cannot say where a keyspace is: %w", err)
	}
	return answerJSON(ctx, changed)
}

func (s *Server) dropKeyspace(ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	dropped, err := s.node().DropKeyspace(until, string(r.name))
	if err != nil {
		return fmt.Errorf("cannot drop keyspace: %w", err)
	}
	return answerJSON(ctx, dropped)
}

func (s *Server) dropColumn(ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	changed, err := s.node().DropColumn(until, string(r.name), string(r.column))
	if err != nil {
		return fmt.Errorf("cannot drop column: %w", err)
	}
	return answerJSON(ctx, changed)
}
