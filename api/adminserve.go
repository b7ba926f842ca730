package api

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/tiering"
)

// viewed returns a call that answers a part of the present view of the cluster.
func viewed(part func(*admin.View) any) handler {
	return rare(func(until context.Context, s *Server, _ *request, _ *nothing) (any, error) {
		view, err := s.cfg.Admin.View(until)
		if err != nil {
			return nil, err
		}
		return part(view), nil
	})
}

func adminPlan(until context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	steps, err := s.cfg.Admin.Plan(until)
	return map[string]any{"steps": steps}, err
}

// changes returns a call that begins a change of the cluster.
func changes[B any](change func(*request, *B) (admin.Change, error), need ...string) handler {
	return rare(func(until context.Context, s *Server, r *request, body *B) (*clientadmin.Changed, error) {
		c, err := change(r, body)
		if err != nil {
			return nil, err
		}
		return s.cfg.Admin.Change(until, c)
	}, need...)
}

// changeNode returns a call that sets the state of the node in the path.
func changeNode(state catalog.NodeState) handler {
	return changes(func(r *request, _ *nothing) (admin.Change, error) {
		return admin.NodeChange{Node: string(r.name), State: state}, nil
	})
}

func transferGroup(r *request, body *struct {
	To string `json:"to"`
}) (admin.Change, error) {
	group, err := r.groupNumber()
	if err == nil && body.To == "" {
		err = invalid("to", "empty")
	}
	return admin.TransferChange{Group: group, To: body.To}, err
}

func moveGroup(r *request, body *struct {
	From string `json:"from"`
	To   string `json:"to"`
}) (admin.Change, error) {
	group, err := r.groupNumber()
	switch {
	case err != nil:
	case body.From == "":
		err = invalid("from", "empty")
	case body.To == "":
		err = invalid("to", "empty")
	}
	return admin.MoveChange{Group: group, From: body.From, To: body.To}, err
}

func changeVersion(_ *request, body *struct {
	Hold     *bool `json:"hold"`
	Finalize *bool `json:"finalize"`
}) (admin.Change, error) {
	switch {
	case (body.Hold == nil) == (body.Finalize == nil):
		return nil, invalid("body", "one of hold and finalize")
	case body.Hold != nil:
		return admin.HoldChange{Held: *body.Hold}, nil
	case !*body.Finalize:
		return nil, invalid("finalize", "it can only be true")
	}
	return admin.FinalizeChange{}, nil
}

func adminCold(until context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	nodes, err := s.cfg.Admin.Cold(until)
	return map[string]any{"nodes": nodes}, err
}

// migrateCold makes all nodes move old rows to disk.
func migrateCold(until context.Context, s *Server, _ *request, body *struct {
	Keyspace  *string    `json:"keyspace"`
	DryRun    bool       `json:"dry_run"`
	Before    *client.ID `json:"before"`
	OlderThan *int64     `json:"older_than_seconds"`
}) (*clientadmin.ColdOrdered, error) {
	const least, most = int64(tiering.ColdOlderMin / time.Second), int64(tiering.ColdOlderMax / time.Second)
	order := tiering.TieringJob{Verb: tiering.ColdMigrate, DryRun: body.DryRun}
	if body.Keyspace != nil {
		if order.Keyspace = *body.Keyspace; order.Keyspace == "" {
			return nil, invalid("keyspace", "empty")
		}
	}
	if body.Before != nil {
		if order.Before = uint64(*body.Before); order.Before == 0 {
			return nil, invalid("before", "no id is below 0")
		}
	}
	if body.OlderThan != nil {
		switch seconds := *body.OlderThan; {
		case body.Before != nil:
			return nil, invalid("older_than_seconds", "before is given too")
		case seconds < least || seconds > most:
			return nil, invalid("older_than_seconds", fmt.Sprintf("not a whole number of %d…%d", least, most))
		default:
			order.OlderThan = time.Duration(seconds) * time.Second
		}
	}
	return s.cfg.Admin.OrderCold(until, order)
}

func stopCold(until context.Context, s *Server, _ *request, _ *nothing) (*clientadmin.ColdOrdered, error) {
	return s.cfg.Admin.OrderCold(until, tiering.TieringJob{Verb: tiering.ColdStop})
}

// groupNumber reads {group} of the path.
func (r *request) groupNumber() (uint32, error) {
	number, ok := strictjson.ParseUint64(r.name)
	if !ok || number > math.MaxUint32 {
		return 0, invalid("group", "not the number of a group")
	}
	return uint32(number), nil
}
