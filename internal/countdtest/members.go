package countdtest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pair is a member in the set of a row's column.
type pair struct {
	column     string
	id, member uint64
	at         time.Time
}

// memberOps is the body of a change of members.
type memberOps struct {
	Want    string
	Counted *bool
	Ops     []struct {
		ID, Member string
		Set        bool
	}
}

// Members returns how many pairs the columns of posts have.
func (s *Server) Members() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.keyspaces[0].pairs)
}

// membersLocked serves the calls about members.
func (s *Server) membersLocked(r *http.Request, body []byte) (int, any) {
	names := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/members/"), "/")
	k := s.find(names[0])
	switch {
	case k == nil || k.Kind != "counters":
		return 404, refuse("unknown_keyspace", "no keyspace "+names[0], "")
	case len(names) < 2 || !slices.Contains(k.Columns, names[1]):
		return 400, refuse("invalid_argument", "column: no such column", "column")
	case len(names) == 2:
		return s.changeMembersLocked(r, k, names[1], body)
	case names[2] == "check":
		return k.checkMember(names[1], body)
	case len(names) == 4:
		member, _ := strconv.ParseUint(names[3], 10, 64)
		lines, cursor := k.list(r, func(p *pair) (uint64, bool) { return p.id, p.column == names[1] && p.member == member }, "id")
		return 200, withCursor(map[string]any{"member": names[3], "ids": lines, "lag_ms": 0}, cursor)
	}
	id, _ := strconv.ParseUint(names[2], 10, 64)
	lines, cursor := k.list(r, func(p *pair) (uint64, bool) { return p.member, p.column == names[1] && p.id == id }, "member")
	count := k.get(id)[slices.Index(k.Columns, names[1])]
	return 200, withCursor(map[string]any{"id": names[2], "count": count, "members": lines}, cursor)
}

func withCursor(answer map[string]any, cursor string) map[string]any {
	if cursor != "" {
		answer["cursor"] = cursor
	}
	return answer
}

func (s *Server) changeMembersLocked(r *http.Request, k *keyspace, column string, body []byte) (int, any) {
	var request memberOps
	if err := strict(body, &request); err != nil || len(request.Ops) == 0 || len(request.Ops) > 10_000 {
		return 400, refuse("invalid_argument", "ops: bad", "ops")
	}
	var shards []int
	for _, op := range request.Ops {
		id, _ := strconv.ParseUint(op.ID, 10, 64)
		shards = append(shards, k.shardOf(id))
	}
	slices.Sort(shards)
	o, status, refusal := s.judgeLocked(r, k, slices.Compact(shards), body)
	if status != 0 {
		return status, refusal
	}
	for shard, f := range o.fates {
		if f == fresh {
			o.mark(shard, applied)
		}
	}
	var results []map[string]any
	for _, op := range request.Ops {
		id, _ := strconv.ParseUint(op.ID, 10, 64)
		if f := o.fates[k.shardOf(id)]; f != fresh {
			results = append(results, map[string]any{"id": op.ID, "member": op.Member, "changed": false, "count": k.get(id)[slices.Index(k.Columns, column)]})
			continue
		}
		member, _ := strconv.ParseUint(op.Member, 10, 64)
		at := k.pairOf(column, id, member)
		changed := (at < 0) == op.Set
		delta := int64(0)
		if changed && op.Set {
			k.pairs, delta = append(k.pairs, pair{column, id, member, time.UnixMilli(1763812800000 + int64(len(k.pairs)))}), 1
		} else if changed {
			k.pairs, delta = slices.Delete(k.pairs, at, at+1), -1
		}
		if request.Counted != nil && !*request.Counted {
			delta = 0
		}
		k.change(id, map[string]int64{column: delta}, nil)
		results = append(results, map[string]any{"id": op.ID, "member": op.Member, "changed": changed, "count": k.get(id)[slices.Index(k.Columns, column)]})
	}
	if !o.is(fresh, applied) {
		return 410, refuse("idempotency_expired", tooOld, "")
	}
	answer := map[string]any{"duplicate": o.is(applied), "token": "token"}
	if request.Want == "none" {
		answer["applied"] = len(results)
	} else {
		answer["results"] = results
	}
	return 200, answer
}

// pairOf returns the place of a pair, or -1.
func (k *keyspace) pairOf(column string, id, member uint64) int {
	return slices.IndexFunc(k.pairs, func(p pair) bool { return p.column == column && p.id == id && p.member == member })
}

func (k *keyspace) checkMember(column string, body []byte) (int, any) {
	var request struct {
		Member string
		IDs    []string
	}
	if err := strict(body, &request); err != nil || len(request.IDs) == 0 || len(request.IDs) > 1000 {
		return 400, refuse("invalid_argument", "ids: bad", "ids")
	}
	member, _ := strconv.ParseUint(request.Member, 10, 64)
	results := []bool{}
	for _, text := range request.IDs {
		id, _ := strconv.ParseUint(text, 10, 64)
		results = append(results, k.pairOf(column, id, member) >= 0)
	}
	return 200, map[string]any{"results": results}
}

// list returns a page of the pairs that line selects, newest first. A cursor is how many came
// before.
func (k *keyspace) list(r *http.Request, line func(*pair) (uint64, bool), name string) (lines []map[string]any, cursor string) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = 100
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	lines = []map[string]any{}
	for i := range k.pairs {
		p := &k.pairs[len(k.pairs)-1-i]
		id, is := line(p)
		switch {
		case !is:
		case from > 0:
			from--
		case len(lines) == limit:
			before, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
			return lines, strconv.Itoa(before + limit)
		default:
			lines = append(lines, map[string]any{name: strconv.FormatUint(id, 10), "at": p.at.UTC().Format(time.RFC3339Nano)})
		}
	}
	return lines, ""
}
