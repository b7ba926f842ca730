package api

import (
	"bytes"
	"context"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/sources"
)

func listSources(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	all, err := s.cfg.Sources.List(until)
	if err != nil {
		return err
	}
	return answerJSON(ctx, struct {
		Sources []sources.Source `json:"sources"`
	}{append([]sources.Source{}, all...)})
}

// answerSource answers with the source that a call returns.
func (s *Server) answerSource(ctx *fasthttp.RequestCtx, r *request, call func(ctx context.Context, name string) (*sources.Source, error)) error {
	until, cancel := r.until()
	defer cancel()
	of, err := call(until, string(r.name))
	if err != nil {
		return err
	}
	return answerJSON(ctx, of)
}

func getSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.answerSource(ctx, r, s.cfg.Sources.Get)
}

func putSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	text := bytes.Clone(ctx.Request.Body())
	return s.answerSource(ctx, r, func(until context.Context, name string) (*sources.Source, error) {
		return s.cfg.Sources.Put(until, name, text)
	})
}

func pauseSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeNothing(ctx.Request.Body()); err != nil {
		return err
	}
	return s.answerSource(ctx, r, s.cfg.Sources.Pause)
}

func resumeSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeNothing(ctx.Request.Body()); err != nil {
		return err
	}
	return s.answerSource(ctx, r, s.cfg.Sources.Resume)
}

func seekSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	to, err := r.decodePositions(ctx.Request.Body())
	if err != nil {
		return err
	}
	return s.answerSource(ctx, r, func(until context.Context, name string) (*sources.Source, error) {
		return s.cfg.Sources.Seek(until, name, to)
	})
}

func deleteSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	if err := s.cfg.Sources.Delete(until, string(r.name)); err != nil {
		return err
	}
	return answerJSON(ctx, struct {
		Name    string `json:"name"`
		Deleted bool   `json:"deleted"`
	}{string(r.name), true})
}

// saveSources serves GET /v1/admin/sources.
func saveSources(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	all, err := s.cfg.Sources.Save(until)
	if err != nil {
		return err
	}
	return answerJSON(ctx, struct {
		Sources []sources.Saved `json:"sources"`
	}{all})
}

// restoreSource serves POST /v1/admin/sources.
func restoreSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	of, err := s.cfg.Sources.RestoreSaved(until, ctx.Request.Body())
	if err != nil {
		return err
	}
	return answerJSON(ctx, of)
}

// decodePositions reads {"positions":{"0":700}}: the texts of positions by partition.
func (r *request) decodePositions(body []byte) (map[uint32]string, error) {
	to := map[uint32]string{}
	err := r.allMembers(body, []string{"positions"}, func(c *cursor, _ int) { c.positions(to) })
	if err == nil && len(to) == 0 {
		err = invalid("positions", "empty")
	}
	return to, err
}

// positions reads an object of positions by partition: numbers or strings.
func (c *cursor) positions(to map[uint32]string) {
	if !c.Begin('{') {
		c.Fail("positions", "not an object of positions by partition")
		return
	}
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		field := "positions." + shown(key)
		partition, err := strconv.ParseUint(string(key), 10, 32)
		if _, twice := to[uint32(partition)]; err != nil {
			c.Fail(field, "not the number of a partition")
		} else if twice {
			c.Fail(field, givenTwice)
		}
		to[uint32(partition)] = c.position(field)
	}
}
