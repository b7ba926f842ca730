package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/internal/must"
)

// goDriver returns a driver of package client.
func goDriver(t *testing.T, addrs []string) func([]byte) ([]byte, error) {
	c, err := client.New(client.Config{Addrs: addrs, Timeout: 2 * time.Second, Retry: client.Retry{For: must.BecomeMax}})
	must.Do(t, err)
	t.Cleanup(c.Close)
	return func(line []byte) ([]byte, error) {
		var asked struct {
			Call string            `json:"call"`
			Args []json.RawMessage `json:"args"`
		}
		if err := json.Unmarshal(line, &asked); err != nil {
			return nil, err
		}
		a := &goArgs{c: c, ctx: t.Context(), rest: asked.Args}
		if n := len(asked.Args); n > 0 && strings.HasPrefix(string(asked.Args[n-1]), "{") && asked.Call != "incr" && asked.Call != "set" || n > 3 && asked.Call == "incr" {
			a.options, a.rest = asked.Args[n-1], asked.Args[:n-1]
			if n > 1 && asked.Call == "poll" && strings.HasPrefix(string(asked.Args[n-2]), "{") {
				a.what, a.rest = asked.Args[n-2], asked.Args[:n-2]
			}
		}
		do, has := goCalls[asked.Call]
		if !has {
			return nil, fmt.Errorf("the Go driver has no call %s", asked.Call)
		}
		ok, err := do(a)
		if a.err != nil {
			return nil, a.err
		}
		var refused *client.Error
		if errors.As(err, &refused) {
			return json.Marshal(map[string]any{"error": map[string]any{
				"code": refused.Code, "status": refused.Status, "field": refused.Field, "maybe_applied": errors.Is(err, client.ErrUnknown), "message": err.Error(),
			}})
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(map[string]any{"ok": ok})
	}
}

// goArgs holds the arguments of one call in the script.
type goArgs struct {
	c             *client.Client
	ctx           context.Context
	rest          []json.RawMessage
	options, what json.RawMessage // nil for none
	err           error           // first error of next, or errors of options
}

// next returns the next argument.
func next[T any](a *goArgs) (v T) {
	if len(a.rest) == 0 {
		a.err = errors.New("an argument is missing")
		return v
	}
	if err := json.Unmarshal(a.rest[0], &v); err != nil && a.err == nil {
		a.err = err
	}
	a.rest = a.rest[1:]
	return v
}

func (a *goArgs) id() client.ID           { return next[client.ID](a) }
func (a *goArgs) ids() []client.ID        { return next[[]client.ID](a) }
func (a *goArgs) text() string            { return next[string](a) }
func (a *goArgs) cells() client.Counts    { return next[client.Counts](a) }
func (a *goArgs) members() client.Members { return a.c.Members(a.text(), a.text()) }

// goOptions has a field for each option that a call in the script may have.
type goOptions struct {
	Key         string        `json:"key"`
	Floor       *int64        `json:"floor"`
	Consistency string        `json:"consistency"`
	Columns     []string      `json:"columns"`
	PageRows    int           `json:"pageRows"`
	Limit       int           `json:"limit"`
	Counts      string        `json:"counts"`
	Group       string        `json:"group"`
	Member      []string      `json:"member"`
	Seen        client.Counts `json:"seen"`
	Detail      bool          `json:"detail"`
	Window      string        `json:"window"`
	Channels    []string      `json:"channels"`
	Dots        []string      `json:"dots"`
	read        client.ReadOptions
	write       client.WriteOptions
}

func (a *goArgs) with() (o goOptions) {
	for _, text := range []json.RawMessage{a.options, a.what} {
		if text != nil {
			a.err = errors.Join(a.err, json.Unmarshal(text, &o))
		}
	}
	o.read, o.write = client.ReadOptions{Consistency: o.Consistency}, client.WriteOptions{Key: o.Key}
	return o
}

// ops parses ops on rows or users. The cells of each op are in the field named verb.
func (a *goArgs) ops(verb, id string) (ops []client.Op) {
	for _, fields := range next[[]map[string]json.RawMessage](a) {
		var op client.Op
		a.err = errors.Join(a.err, json.Unmarshal(fields[id], &op.ID), json.Unmarshal(fields[verb], &op.Cells))
		ops = append(ops, op)
	}
	return ops
}

func oneOf[T any](r client.WriteResult, err error, shape func(client.OpResult) T) (any, error) {
	if err != nil {
		return nil, err
	}
	return shape(r.Results[0]), nil
}

// goCalls implements each call of the script, by name.
var goCalls = map[string]func(a *goArgs) (any, error){
	"createKeyspace": func(a *goArgs) (any, error) {
		name, columns := a.text(), next[[]string](a)
		made := client.NewKeyspace{Name: name}
		for _, name := range columns {
			made.Columns = append(made.Columns, column.Column{Name: name})
		}
		_, err := a.c.CreateKeyspace(a.ctx, made)
		return map[string]any{"name": name, "columns": columns}, err
	},
	"incr": func(a *goArgs) (any, error) {
		keyspace, o := a.text(), a.with()
		r, err := a.c.IncrMany(a.ctx, keyspace, []client.Op{{ID: a.id(), Cells: a.cells(), Floor: o.Floor}}, o.write)
		return oneOf(r, err, func(of client.OpResult) any {
			return struct {
				client.OpResult
				client.Written
			}{of, r.Written}
		})
	},
	"incrMany": func(a *goArgs) (any, error) { return a.c.IncrMany(a.ctx, a.text(), a.ops("add", "id"), a.with().write) },
	"setMany":  func(a *goArgs) (any, error) { return a.c.Set(a.ctx, a.text(), a.ops("set", "id"), a.with().write) },
	"set": func(a *goArgs) (any, error) {
		r, err := a.c.Set(a.ctx, a.text(), []client.Op{{ID: a.id(), Cells: a.cells()}}, client.WriteOptions{})
		return oneOf(r, err, func(of client.OpResult) any { return of })
	},
	"delete": func(a *goArgs) (any, error) { return a.c.Delete(a.ctx, a.text(), a.id(), a.with().write) },
	"get":    func(a *goArgs) (any, error) { return a.c.Get(a.ctx, a.text(), a.id(), a.with().read) },
	"getMany": func(a *goArgs) (any, error) {
		return a.c.GetMany(a.ctx, a.text(), a.ids(), a.with().Columns, a.with().read)
	},
	"scan": func(a *goArgs) (any, error) {
		var rows []client.Row
		keyspace := a.text()
		for cursor := ""; ; {
			page, err := a.c.Scan(a.ctx, keyspace, cursor, a.with().PageRows, nil, a.with().read)
			rows, cursor = append(rows, page.Rows...), page.Cursor
			if err != nil || cursor == "" {
				return rows, err
			}
		}
	},
	"hot": func(a *goArgs) (any, error) {
		return a.c.Hot(a.ctx, a.text(), a.text(), a.with().Window, a.with().Limit, a.with().read)
	},
	"top": func(a *goArgs) (any, error) {
		return a.c.Top(a.ctx, a.text(), a.text(), a.with().Limit, a.with().read)
	},
	"ops": func(a *goArgs) (any, error) {
		var ops []client.KeyspaceOp
		for _, fields := range next[[]map[string]json.RawMessage](a) {
			var op client.KeyspaceOp
			var read struct {
				Keyspace, Column string
				ID, User, Member client.ID
				Add              client.Counts
			}
			text, _ := json.Marshal(fields)
			_ = json.Unmarshal(text, &read) // ignore the error: a field set with counts does not fit read, and is parsed below
			op.Keyspace, op.ID, op.Add = read.Keyspace, read.ID, read.Add
			switch {
			case fields["user"] != nil:
				op.Keyspace, op.ID = "unread", read.User
			case fields["member"] != nil:
				op.Member = &client.KeyspaceMember{Column: read.Column, Member: read.Member, Leave: string(fields["set"]) == "false"}
			case fields["set"] != nil:
				a.err = errors.Join(a.err, json.Unmarshal(fields["set"], &op.Set))
			}
			ops = append(ops, op)
		}
		r, err := a.c.Ops(a.ctx, ops, a.with().write)
		results := []any{}
		for i, of := range r.Results {
			if ops[i].Keyspace == "unread" { // the client returns a user in ID, but the script expects the member user
				results = append(results, map[string]any{"user": of.ID, "counts": of.Counts})
				continue
			}
			results = append(results, of)
		}
		return map[string]any{"results": results}, err
	},
	"addMember":    func(a *goArgs) (any, error) { return a.members().Add(a.ctx, a.id(), a.id()) },
	"removeMember": func(a *goArgs) (any, error) { return a.members().Remove(a.ctx, a.id(), a.id()) },
	"changeMembers": func(a *goArgs) (any, error) {
		sets := a.members()
		var ops []client.MemberOp
		for _, op := range next[[]struct {
			ID, Member client.ID
			Set        bool
		}](a) {
			ops = append(ops, client.MemberOp{ID: op.ID, Member: op.Member, Leave: !op.Set})
		}
		return sets.Change(a.ctx, ops, a.with().write)
	},
	"hasMember": func(a *goArgs) (any, error) { return a.members().Check(a.ctx, a.id(), a.ids(), a.with().read) },
	"members": func(a *goArgs) (any, error) {
		return a.members().List(a.ctx, a.id(), "", a.with().Limit, a.with().read)
	},
	"rowsOf": func(a *goArgs) (any, error) { return a.members().Of(a.ctx, a.id(), "", a.with().Limit, a.with().read) },
	"unread": func(a *goArgs) (any, error) { return a.c.Unread(a.ctx, a.id(), a.with().read) },
	"incrUnread": func(a *goArgs) (any, error) {
		r, err := a.c.IncrUnread(a.ctx, a.ops("add", "user"), a.with().write)
		results := []map[string]any{}
		for _, of := range r.Results {
			results = append(results, map[string]any{"user": of.ID, "counts": of.Counts})
		}
		return map[string]any{"results": results}, err
	},
	"resetUnread": func(a *goArgs) (any, error) {
		if o := a.with(); o.Seen != nil {
			return a.c.ResetSeen(a.ctx, a.id(), o.Seen, o.write)
		}
		return a.c.ResetUnread(a.ctx, a.id(), a.with().Columns, a.with().write)
	},
	"publishNotice": func(a *goArgs) (any, error) { return a.c.Channels().Publish(a.ctx, a.text(), a.with().write) },
	"retractNotice": func(a *goArgs) (any, error) {
		return a.c.Channels().Retract(a.ctx, a.text(), next[int64](a), a.with().write)
	},
	"notices": func(a *goArgs) (any, error) {
		return a.c.Channels().Notices(a.ctx, a.text(), a.id(), nil, a.with().read)
	},
	"readNotices":   func(a *goArgs) (any, error) { return a.c.Channels().Read(a.ctx, a.text(), a.id(), nil, a.with().write) },
	"fireDot":       func(a *goArgs) (any, error) { return a.c.Dots().Fire(a.ctx, a.text(), a.with().write) },
	"dot":           func(a *goArgs) (any, error) { return a.c.Dots().Shows(a.ctx, a.text(), a.id(), a.with().read) },
	"clearDot":      func(a *goArgs) (any, error) { return a.c.Dots().Clear(a.ctx, a.text(), a.id(), a.with().write) },
	"follow":        func(a *goArgs) (any, error) { return a.c.Feeds().Follow(a.ctx, a.id(), a.ids(), a.with().write) },
	"unfollow":      func(a *goArgs) (any, error) { return a.c.Feeds().Unfollow(a.ctx, a.id(), a.ids(), a.with().write) },
	"resetFeed":     func(a *goArgs) (any, error) { return a.c.Feeds().Reset(a.ctx, a.id(), a.ids(), a.with().write) },
	"resetFeedUpTo": func(a *goArgs) (any, error) { return a.c.Feeds().ResetUpTo(a.ctx, a.id(), a.id(), a.with().write) },
	"readFeed":      func(a *goArgs) (any, error) { return a.c.Feeds().Read(a.ctx, a.id(), a.ids(), a.with().write) },
	"feedUnread":    func(a *goArgs) (any, error) { return a.c.Feeds().Unread(a.ctx, a.id(), a.with().Detail, a.with().read) },
	"followees": func(a *goArgs) (any, error) {
		followees, _, err := a.c.Feeds().Followees(a.ctx, a.id(), "", 0, a.with().read)
		return followees, err
	},
	"addPost":    func(a *goArgs) (any, error) { return a.c.AddPost(a.ctx, a.id(), a.id(), a.with().write) },
	"removePost": func(a *goArgs) (any, error) { return a.c.RemovePost(a.ctx, a.id(), a.id(), a.with().write) },
	"outbox":     func(a *goArgs) (any, error) { return a.c.Outbox(a.ctx, a.id(), client.PostQuery{}, a.with().read) },
	"timeline": func(a *goArgs) (any, error) {
		o := a.with()
		return a.c.Timeline(a.ctx, a.id(), client.PostQuery{Limit: o.Limit, Group: o.Group, Counts: o.Counts, Member: o.Member}, o.read)
	},
	"putGroup": func(a *goArgs) (any, error) {
		return a.c.Feeds().PutGroup(a.ctx, a.id(), a.text(), a.ids(), a.with().write)
	},
	"dropGroup": func(a *goArgs) (any, error) { return a.c.Feeds().DropGroup(a.ctx, a.id(), a.text(), a.with().write) },
	"poll": func(a *goArgs) (any, error) {
		return a.c.Poll(a.ctx, a.id(), a.with().Channels, a.with().Dots, a.with().read)
	},
	"count": func(a *goArgs) (any, error) {
		keyspace, column, ids, atOnce := a.text(), a.text(), a.ids(), next[int](a)
		var counting errgroup.Group
		counting.SetLimit(atOnce)
		for _, id := range ids {
			counting.Go(func() error {
				_, err := a.c.Incr(a.ctx, keyspace, id, client.Delta(column, 1))
				return err
			})
		}
		if err := counting.Wait(); err != nil {
			return nil, err
		}
		w, err := a.c.NewWriter(client.WriterConfig{RetryFor: must.BecomeMax, BatchOps: 50})
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if err := w.Add(a.ctx, keyspace, id, client.Delta(column, 1)); err != nil {
				return nil, err
			}
		}
		return len(ids), w.Close(a.ctx)
	},
}
