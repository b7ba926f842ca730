package api

import (
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/shard/tiering"
)

func adminCold(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	nodes, err := s.cfg.Admin.Cold(until)
	if err != nil {
		return err
	}
	return answerJSON(ctx, struct {
		Nodes []admin.ColdNode `json:"nodes"`
	}{append([]admin.ColdNode{}, nodes...)})
}

// orderCold starts the tiering order in the body on all nodes.
func (s *Server) orderCold(ctx *fasthttp.RequestCtx, r *request, verb tiering.ColdVerb) error {
	order, err := r.decodeColdOrder(ctx.Request.Body(), verb)
	if err != nil {
		return err
	}
	until, cancel := r.until()
	defer cancel()
	ordered, err := s.cfg.Admin.OrderCold(until, order)
	if err != nil {
		return err
	}
	return answerJSON(ctx, ordered)
}

// The members of orders, by verb. The position is that in seen.
var coldMembers = map[tiering.ColdVerb][]string{
	tiering.ColdMigrate: {"keyspace", "dry_run", "before", "older_than_seconds"},
	tiering.ColdStop:    {},
}

// decodeColdOrder parses the parameters of an order.
func (r *request) decodeColdOrder(body []byte, verb tiering.ColdVerb) (tiering.TieringJob, error) {
	o := tiering.TieringJob{Verb: verb}
	known := coldMembers[verb]
	_, err := r.members(optional(body), known, func(c *cursor, member int) { c.coldMember(known[member], &o) })
	if err == nil && o.Before > 0 && o.OlderThan > 0 {
		err = invalid("older_than_seconds", "before is given too")
	}
	return o, err
}

// coldMember reads one member of an order.
func (c *cursor) coldMember(key string, o *tiering.TieringJob) {
	switch key {
	case "keyspace":
		if o.Keyspace = c.name(key); o.Keyspace == "" {
			c.Fail(key, "empty")
		}
	case "dry_run":
		o.DryRun = c.boolean(key)
	case "before":
		var ok bool
		if o.Before, ok = c.ID(); !ok {
			c.Fail(key, notUint64)
		} else if o.Before == 0 {
			c.Fail(key, "no id is below 0")
		}
	case "older_than_seconds":
		o.OlderThan = c.seconds(key, tiering.ColdOlderMin, tiering.ColdOlderMax)
	}
}

// seconds parses a whole number of seconds, least … most.
func (c *cursor) seconds(path string, least, most time.Duration) time.Duration {
	v, ok := c.Int64()
	if !ok || v < int64(least/time.Second) || v > int64(most/time.Second) {
		c.Fail(path, fmt.Sprintf("not a whole number of %d…%d", least/time.Second, most/time.Second))
		return least
	}
	return time.Duration(v) * time.Second
}
