package operate

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/tiering"
)

// Viewed returns a call that answers with a part of the cluster's current view. The catalog in it is as new as that of
// Keyspaces.
func Viewed(part func(*admin.View) any) func(context.Context, *Call, *Nothing) (any, error) {
	return func(until context.Context, c *Call, _ *Nothing) (any, error) {
		if c.Fresh {
			if err := c.Node.CatchUp(until); err != nil {
				return nil, fmt.Errorf("cannot read the catalog: %w", err)
			}
		}
		view, err := c.Admin.View(until)
		if err != nil {
			return nil, err
		}
		return part(view), nil
	}
}

func Plan(until context.Context, c *Call, _ *Nothing) (any, error) {
	steps, err := c.Admin.Plan(until)
	return map[string]any{"steps": steps}, err
}

// Changes returns a call that begins a change of the cluster.
func Changes[B any](change func(*Call, *B) (admin.Change, error)) func(context.Context, *Call, *B) (*clientadmin.Changed, error) {
	return func(until context.Context, c *Call, body *B) (*clientadmin.Changed, error) {
		begun, err := change(c, body)
		if err != nil {
			return nil, err
		}
		return c.Admin.Change(until, begun)
	}
}

// ChangeNode returns a call that sets the state of the node in the path.
func ChangeNode(state catalog.NodeState) func(context.Context, *Call, *Nothing) (*clientadmin.Changed, error) {
	return Changes(func(c *Call, _ *Nothing) (admin.Change, error) {
		return admin.NodeChange{Node: c.Name, State: state}, nil
	})
}

func TransferGroup(c *Call, body *struct {
	To string `json:"to"`
}) (admin.Change, error) {
	group, err := c.group()
	if err == nil && body.To == "" {
		err = invalid("to", "empty")
	}
	return admin.TransferChange{Group: group, To: body.To}, err
}

func MoveGroup(c *Call, body *struct {
	From string `json:"from"`
	To   string `json:"to"`
}) (admin.Change, error) {
	group, err := c.group()
	switch {
	case err != nil:
	case body.From == "":
		err = invalid("from", "empty")
	case body.To == "":
		err = invalid("to", "empty")
	}
	return admin.MoveChange{Group: group, From: body.From, To: body.To}, err
}

func ChangeVersion(c *Call, body *struct {
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

func Cold(until context.Context, c *Call, _ *Nothing) (any, error) {
	nodes, err := c.Admin.Cold(until)
	return map[string]any{"nodes": nodes}, err
}

func Digests(until context.Context, c *Call, _ *Nothing) (any, error) {
	groups, err := c.Admin.Digests(until)
	return map[string]any{"groups": groups}, err
}

// MigrateCold makes all nodes move old rows to disk.
func MigrateCold(until context.Context, c *Call, body *struct {
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
		number, is := body.Before.Number()
		switch {
		case !is:
			return nil, invalid("before", strictjson.NotUint64)
		case number == 0:
			return nil, invalid("before", "no id is below 0")
		}
		order.Before = number
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
	return c.Admin.OrderCold(until, order)
}

func StopCold(until context.Context, c *Call, _ *Nothing) (*clientadmin.ColdOrdered, error) {
	return c.Admin.OrderCold(until, tiering.TieringJob{Verb: tiering.ColdStop})
}

// group reads {group} of the path.
func (c *Call) group() (uint32, error) { return Group(c.Name) }

// RestoreOptions parses the query of a restore. The restore checks the names of the columns.
func RestoreOptions(query iter.Seq2[[]byte, []byte]) (o admin.RestoreOptions, err error) {
	for name, value := range query {
		switch text := string(value); string(name) {
		case "force":
			if o.Force = text == "true"; !o.Force && text != "false" {
				return o, invalid("force", strictjson.NotBool)
			}
		case "columns":
			o.Columns = strings.Split(text, ",")
		case "divisor":
			if o.Divisor, err = strconv.Atoi(text); err != nil || o.Divisor < 1 || o.Divisor > shard.ShardsMax {
				return o, invalid("divisor", fmt.Sprintf("not an integer from 1 to %d", shard.ShardsMax))
			}
		default:
			return o, invalid(Shown(name), "no such parameter of the query")
		}
	}
	return o, nil
}

// Group parses the number of a group.
func Group(name string) (uint32, error) {
	number, err := strconv.ParseUint(name, 10, 32)
	if err != nil || name != strconv.FormatUint(number, 10) {
		return 0, invalid("group", "not the number of a group")
	}
	return uint32(number), nil
}

// auditDefault is the default number of lines of the audit log in an answer.
const auditDefault = 100

// Audit answers with the last lines of this node's audit log.
func Audit(_ context.Context, c *Call, _ *Nothing) (any, error) {
	limit := auditDefault
	if c.Limit > 0 {
		limit = c.Limit
	}
	switch {
	case c.HasCursor:
		return nil, invalid("cursor", "no such parameter of the query")
	case limit > auth.AuditTailMax:
		return nil, invalid("limit", fmt.Sprintf("not an integer from 1 to %d", auth.AuditTailMax))
	}
	events, err := c.Audit.Tail(limit)
	return map[string]any{"events": events}, err
}
