package api

import (
	"context"
	"errors"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
)

// gossipKeys is the answer to calls about the keys of gossip.
type gossipKeys struct {
	Nodes    []admin.GossipKeyNode `json:"nodes"`
	Complete bool                  `json:"complete"` // every node answered and did as it was told
}

func answerGossipKeys(ctx *fasthttp.RequestCtx, nodes []admin.GossipKeyNode) error {
	answer := gossipKeys{Nodes: nodes, Complete: true}
	for _, n := range nodes {
		answer.Complete = answer.Complete && n.Answers && n.Refused == ""
	}
	return answerJSON(ctx, answer)
}

func listGossipKeys(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return r.withGossipKeys(ctx, s.cfg.Admin.GossipKeys)
}

// changeGossipKey changes a key on every node. Its body is in no log.
func changeGossipKey(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	values, err := r.decodeNames(ctx.Request.Body(), "action", "key")
	if err != nil {
		return err
	}
	change, err := admin.ParseGossipKeyChange(values[0], values[1])
	switch {
	case errors.Is(err, admin.ErrBadGossipAction):
		return invalid("action", err.Error())
	case err != nil:
		return invalid("key", err.Error())
	}
	return r.withGossipKeys(ctx, func(until context.Context) ([]admin.GossipKeyNode, error) {
		return s.cfg.Admin.ChangeGossipKey(until, change)
	})
}

func (r *request) withGossipKeys(ctx *fasthttp.RequestCtx, call func(context.Context) ([]admin.GossipKeyNode, error)) error {
	until, cancel := r.until()
	defer cancel()
	nodes, err := call(until)
	if err != nil {
		return err
	}
	return answerGossipKeys(ctx, nodes)
}
