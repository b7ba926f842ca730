package api

import (
	"context"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm/catalog"
)

// until is a context that ends at the request's deadline. It is not fasthttp's,
// which an Admin must not keep.
func (r *request) until() (context.Context, context.CancelFunc) {
	return context.WithDeadline(context.Background(), r.deadline)
}

// adminView answers with the part of the current view that show returns.
func (s *Server) adminView(ctx *fasthttp.RequestCtx, r *request, show func(*admin.View) any) error {
	until, cancel := r.until()
	defer cancel()
	view, err := s.cfg.Admin.View(until)
	if err != nil {
		return err
	}
	return answerJSON(ctx, show(view))
}

func adminNodes(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.adminView(ctx, r, func(v *admin.View) any {
		return struct {
			ClusterID   string       `json:"cluster_id"`
			ClusterName string       `json:"cluster_name,omitempty"`
			Nodes       []admin.Node `json:"nodes"`
		}{v.ClusterID, v.ClusterName, append([]admin.Node{}, v.Nodes...)}
	})
}

func adminGroups(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.adminView(ctx, r, func(v *admin.View) any {
		return struct {
			Groups []admin.Group `json:"groups"`
		}{append([]admin.Group{}, v.Groups...)}
	})
}

// groupDigests is a group as adminDigests answers it.
type groupDigests struct {
	ID       uint32          `json:"id"`
	Keyspace string          `json:"keyspace"`
	Shard    int             `json:"shard"`
	Replicas []replicaDigest `json:"replicas"`
}

type replicaDigest struct {
	Node         string       `json:"node"`
	AppliedIndex uint64       `json:"applied_index"`
	Digest       string       `json:"digest"`
	Marks        []markDigest `json:"marks"`
	Entries      []entryMark  `json:"entries"`
}

type markDigest struct {
	Index  uint64 `json:"index"`
	Digest string `json:"digest"`
}

type entryMark struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	CRC   string `json:"crc"`
}

func adminDigests(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.adminView(ctx, r, func(v *admin.View) any {
		groups := []groupDigests{}
		for _, g := range v.Groups {
			of := groupDigests{ID: g.ID, Keyspace: g.Keyspace, Shard: g.Shard, Replicas: []replicaDigest{}}
			for _, replica := range g.Replicas {
				d := replicaDigest{Node: replica.Node, AppliedIndex: replica.AppliedIndex, Digest: replica.Digest, Marks: []markDigest{}, Entries: []entryMark{}}
				for _, m := range replica.Marks {
					d.Marks = append(d.Marks, markDigest{m.Index, hex16(m.Digest)})
				}
				for _, e := range replica.Entries {
					d.Entries = append(d.Entries, entryMark{e.Index, e.Term, hex16(uint64(e.CRC))[8:]})
				}
				of.Replicas = append(of.Replicas, d)
			}
			groups = append(groups, of)
		}
		return struct {
			Groups []groupDigests `json:"groups"`
		}{groups}
	})
}

// hex16 formats a digest.
func hex16(digest uint64) string {
	const digits = "0123456789abcdef"
	var text [16]byte
	for i := range text {
		text[i] = digits[digest>>(60-4*i)&15]
	}
	return string(text[:])
}

func adminVersion(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.adminView(ctx, r, func(v *admin.View) any { return v.Version })
}

func adminPlan(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	steps, err := s.cfg.Admin.Plan(until)
	if err != nil {
		return err
	}
	return answerJSON(ctx, struct {
		Steps []admin.Step `json:"steps"`
	}{append([]admin.Step{}, steps...)})
}

// adminChange makes a change and answers with its result.
func (s *Server) adminChange(ctx *fasthttp.RequestCtx, r *request, change admin.Change) error {
	until, cancel := r.until()
	defer cancel()
	changed, err := s.cfg.Admin.Change(until, change)
	if err != nil {
		return err
	}
	return answerJSON(ctx, changed)
}

func (s *Server) changeNode(ctx *fasthttp.RequestCtx, r *request, state catalog.NodeState) error {
	if err := r.decodeNothing(ctx.Request.Body()); err != nil {
		return err
	}
	return s.adminChange(ctx, r, admin.NodeChange{Node: string(r.name), State: state})
}

func transferGroup(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	group, err := r.groupNumber()
	if err != nil {
		return err
	}
	names, err := r.decodeNames(ctx.Request.Body(), "to")
	if err != nil {
		return err
	}
	return s.adminChange(ctx, r, admin.TransferChange{Group: group, To: names[0]})
}

func moveGroup(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	group, err := r.groupNumber()
	if err != nil {
		return err
	}
	names, err := r.decodeNames(ctx.Request.Body(), "from", "to")
	if err != nil {
		return err
	}
	return s.adminChange(ctx, r, admin.MoveChange{Group: group, From: names[0], To: names[1]})
}

func changeVersion(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	change, err := r.decodeVersionChange(ctx.Request.Body())
	if err != nil {
		return err
	}
	return s.adminChange(ctx, r, change)
}
