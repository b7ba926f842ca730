package redis

import (
	"bytes"
	"fmt"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/shard"
)

func rankingCommands() []spec {
	const group = "countd"
	return []spec{
		{name: "countd.hot", arity: -2, traits: readsSets, keys: oneKey, need: auth.Read.InBody(), group: group, does: "ids that gained most in a column", call: countdHot},
		{name: "countd.top", arity: -2, traits: readsSets, keys: oneKey, need: auth.Read.InBody(), group: group, does: "ids with the largest counts of a column", call: countdTop},
	}
}

// ranked parses {keyspace}:{column}.
func (b *batch) ranked(text []byte) (t *table, column int, err error) {
	name, of, found := bytes.Cut(text, []byte(":"))
	if !found {
		return nil, 0, resp.ArgumentError(fmt.Sprintf("'%s' is not {keyspace}:{column}", resp.Shown(text)))
	}
	if t = b.tableOf(name); t == nil {
		return nil, 0, b.noKeyspace(name)
	}
	column, err = t.field(of)
	return t, column, err
}

// countdHot replies with a map of window, since (in Unix milliseconds), others_at_most and results.
// Each result is a map of id, gained and error.
func countdHot(a *arguments) {
	t, column, err := a.b.ranked(a.Next())
	a.Fail(err)
	q := &counters.HotQuery{Column: uint8(column), Window: rankings.Hour, Limit: counters.RankingDefault}
	a.Options(resp.LimitOption(&q.Limit, counters.RankingMax), resp.TextOption("window", func(text []byte) (err error) {
		if q.Window, err = rankings.ParseWindow(string(text)); err != nil {
			return resp.FieldError("window", err.Error())
		}
		return nil
	}))
	var ids names.Shown
	planRead(a, t, q.Limit, func(opt *shard.ReadOptions) (*counters.HotQuery, error) {
		q.Now = time.Now().UnixMilli()
		err := a.node().Read(t.ks, q, nil, opt)
		if err == nil {
			ids, err = a.node().names.Show(t.ks.Names, names.IDs(q.Gains, func(g rankings.Gain) uint64 { return g.Key }), opt)
		}
		return q, err
	}, func(dst []byte, q *counters.HotQuery, resp3 bool) []byte {
		dst = resp.AppendBulk(resp.AppendMap(dst, 4, resp3), "window")
		dst = resp.AppendBulk(dst, q.Window.String())
		dst = resp.AppendInt(resp.AppendBulk(dst, "since"), q.Since.UnixMilli())
		dst = resp.AppendInt(resp.AppendBulk(dst, "others_at_most"), q.OthersAtMost(q.Limit))
		dst = resp.AppendArray(resp.AppendBulk(dst, "results"), len(q.Gains))
		for i, g := range q.Gains {
			dst = appendID(resp.AppendBulk(resp.AppendMap(dst, 3, resp3), "id"), ids, i, g.Key)
			dst = resp.AppendInt(resp.AppendBulk(dst, "gained"), g.Gained)
			dst = resp.AppendInt(resp.AppendBulk(dst, "error"), g.Error)
		}
		return dst
	})
}

// countdTop replies with an array in which each id is followed by its count, like ZRANGE
// WITHSCORES.
func countdTop(a *arguments) {
	t, column, err := a.b.ranked(a.Next())
	a.Fail(err)
	q := &counters.TopQuery{Column: uint8(column), Limit: counters.RankingDefault}
	a.Options(resp.LimitOption(&q.Limit, counters.RankingMax))
	var ids names.Shown
	planRead(a, t, q.Limit, func(opt *shard.ReadOptions) (*counters.TopQuery, error) {
		err := a.node().Read(t.ks, q, nil, opt)
		if err == nil && q.Scanning {
			err = resp.Error("LOADING " + q.Progress())
		}
		if err == nil {
			ids, err = a.node().names.Show(t.ks.Names, names.IDs(q.Top, func(p engine.Place) uint64 { return p.ID }), opt)
		}
		return q, err
	}, func(dst []byte, q *counters.TopQuery, _ bool) []byte {
		dst = resp.AppendArray(dst, 2*len(q.Top))
		for i, row := range q.Top {
			dst = resp.AppendInt(appendID(dst, ids, i, row.ID), row.Count)
		}
		return dst
	})
}
