package api

import (
	"context"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
)

// This file serves rare calls, by reflection. Other calls parse bodies and append answers without
// allocation.

// rare returns the handler of a call whose body is a B and whose answer is an A, both in JSON. It
// refuses a body that lacks a required member. The context named until ends at the request's
// deadline. It is not the fasthttp.RequestCtx, because run may still use it after the answer.
func rare[B, A any](run func(until context.Context, s *Server, r *request, body *B) (A, error), required ...string) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		var body B
		if r.takes&takesBody != 0 {
			if err := operate.Decode(optional(ctx.Request.Body()), &body, required...); err != nil {
				return err
			}
		}
		if err := named(&r.texts); err != nil {
			return err
		}
		until, cancel := context.WithDeadline(context.Background(), r.deadline)
		defer cancel()
		a, err := run(until, s, r, &body)
		if err != nil {
			return err
		}
		return answerJSON(ctx, a)
	}
}
