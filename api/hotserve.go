package api

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rankings"
)

// rankingRoutes are the calls about the first ids of a column.
func rankingRoutes() []route {
	const ranking = takesRead | takesKeyspace | takesColumn | takesRanking
	read := auth.Read.InPath()
	return []route{
		{"GET /v1/hot/{keyspace}/{column}", "hot", does{ranking | takesWindow, read, hottest}},
		{"GET /v1/top/{keyspace}/{column}", "top", does{ranking, read, top}},
	}
}

// hottest answers which ids gained most in a column.
func hottest(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	window := rankings.Hour
	if r.asked.hasWindow {
		window = r.asked.window
	}
	q := counters.HotQuery{Column: uint8(r.sets.column), Window: window, Now: time.Now().UnixMilli(), Limit: cmp.Or(r.asked.limit, counters.RankingDefault)}
	if err := s.node().Read(r.keyspace, &q, nil, &r.read); err != nil {
		return fmt.Errorf("cannot read what ids gained: %w", err)
	}
	for _, g := range q.Gains {
		r.ids = append(r.ids, g.Key)
	}
	r.allColumns()
	width := len(r.keyspace.Columns)
	if err := s.readRows(r, width); err != nil {
		return err
	}
	texts, err := rowTexts(r, r.ids)
	if err != nil {
		return err
	}
	answerLong(ctx, rowsBytes(len(r.ids), len(r.columns))+memberBytes*len(r.ids), func(dst []byte) []byte {
		dst = append(append(append(dst, `{"window":"`...), q.Window.String()...), `","since":"`...)
		dst = append(q.Since.UTC().AppendFormat(dst, time.RFC3339), '"')
		dst = append(appendNumber(append(dst, ','), "others_at_most", q.OthersAtMost(q.Limit)), `,"results":[`...)
		n := 0
		for i, g := range q.Gains {
			row := r.rows.Rows[i*width : (i+1)*width]
			if !slices.ContainsFunc(row, func(count int64) bool { return count != 0 }) {
				continue // the row was deleted
			}
			dst = texts.AppendJSON(appendRowMember(comma(dst, n), r.keyspace), i, g.Key)
			dst = appendNumber(append(dst, ','), "gained", g.Gained)
			dst = append(appendNumber(append(dst, ','), "error", g.Error), `,"counts":`...)
			dst = append(appendColumns(dst, r.keyspace, r.columns, row), '}')
			n++
		}
		return append(dst, `]}`...)
	})
	return nil
}

// top answers the largest counts of a column. The counts of the other columns may be newer.
func top(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	q := counters.TopQuery{Column: uint8(r.sets.column), Limit: cmp.Or(r.asked.limit, counters.RankingDefault)}
	if err := s.node().Read(r.keyspace, &q, nil, &r.read); err != nil {
		return fmt.Errorf("cannot read the largest counts: %w", err)
	}
	if q.Scanning {
		return &fault{
			status: fasthttp.StatusServiceUnavailable, code: codeNotReady,
			message: q.Progress(),
		}
	}
	for _, row := range q.Top {
		r.ids = append(r.ids, row.ID)
	}
	r.allColumns()
	width := len(r.keyspace.Columns)
	if err := s.readRows(r, width); err != nil {
		return err
	}
	for i, row := range q.Top {
		r.rows.Rows[i*width+r.sets.column] = row.Count // the count by which the answer is sorted
	}
	texts, err := rowTexts(r, r.ids)
	if err != nil {
		return err
	}
	answerLong(ctx, rowsBytes(len(r.ids), len(r.columns)), func(dst []byte) []byte {
		return append(appendRows(dst, &listed{ids: r.ids, texts: texts}, r.keyspace, r.columns, r.rows.Rows, nil), '}')
	})
	return nil
}
