package countdtest

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
)

// ops is the body of a write.
type ops struct {
	Want string
	Ops  []struct {
		ID    string
		Add   map[string]int64
		Set   map[string]int64
		Floor *int64
	}
}

func (s *Server) write(r *http.Request, k *keyspace, verb string, body []byte, allowed []int) (int, any) {
	var request ops
	if err := strict(body, &request); err != nil || len(request.Ops) == 0 || len(request.Ops) > 10_000 {
		return 400, refuse("invalid_argument", fmt.Sprint("ops: ", err), "ops")
	}
	if field := k.wrong(verb, request); field != "" {
		return 400, refuse("invalid_argument", field+": no such column, or no id", field)
	}
	o, status, refusal := s.judgeLocked(r, k, k.shardsOf(request), body)
	if status != 0 {
		return status, refusal
	}
	duplicate := o.is(applied, partly, refused)
	if allowed != nil {
		maps.DeleteFunc(o.fates, func(shard int, _ fate) bool { return !slices.Contains(allowed, shard) })
	}
	done := k.apply(request, &o)
	s.mu.writes++
	if !o.is(fresh, applied, partly, refused) {
		return 410, done.tooOld()
	}
	if len(done.refused) == len(done.results) {
		return 409, refuse("overflow", "the sum does not fit int64", "")
	}
	answer := map[string]any{"duplicate": duplicate, "token": "token-" + strconv.Itoa(s.mu.writes)}
	if len(done.refused) > 0 {
		answer["failed"] = len(done.refused)
	}
	if len(done.unknown) > 0 {
		answer["unknown"] = done.unknown
	}
	if request.Want != "none" {
		answer["results"] = done.results
		return 200, answer
	}
	answer["applied"] = len(done.applied)
	if len(done.refused) > 0 {
		answer["errors"] = done.refused
	}
	return 200, answer
}

func (s *Server) remove(r *http.Request, k *keyspace, id uint64) (int, any) {
	shard := k.shardOf(id)
	o, status, refusal := s.judgeLocked(r, k, []int{shard}, nil)
	switch {
	case status != 0:
		return status, refusal
	case o.is(expired):
		return 410, refuse("idempotency_expired", tooOld, "")
	case o.is(fresh):
		k.put(id, nil)
		o.mark(shard, applied)
	}
	row := k.result(id, nil)
	return 200, map[string]any{"id": row.ID, "counts": row.Counts, "duplicate": !o.is(fresh), "token": "token"}
}

// shardsOf returns the shards that a request writes to.
func (k *keyspace) shardsOf(request ops) []int {
	var shards []int
	for _, op := range request.Ops {
		id, _ := strconv.ParseUint(op.ID, 10, 64) // checked by wrong
		shards = append(shards, k.shardOf(id))
	}
	slices.Sort(shards)
	return slices.Compact(shards)
}

// wrong returns the path of the first fault of the ops, or "".
func (k *keyspace) wrong(verb string, request ops) string {
	for i, op := range request.Ops {
		cells := op.Add
		if verb == "set" {
			cells = op.Set
		}
		for column := range cells {
			if !slices.Contains(k.Columns, column) {
				return fmt.Sprintf("ops[%d].%s.%s", i, verb, column)
			}
		}
		if _, err := strconv.ParseUint(op.ID, 10, 64); err != nil || len(cells) == 0 {
			return fmt.Sprintf("ops[%d].id", i)
		}
	}
	return ""
}

// written is the outcome of a write's ops.
type written struct {
	results []result // of every op
	refused []result // those of ops that overflowed, repeated
	applied []string // ids
	unknown []string // ids of ops whose outcome is no longer known
}

const tooOld = "the request is too old to tell whether it was applied"

// tooOld refuses the parts of shards that have forgotten the request, and names the parts
// that others applied.
func (w *written) tooOld() map[string]any {
	refusal := refuse("idempotency_expired", tooOld, "")
	if len(w.applied)+len(w.unknown) > 0 {
		refusal["applied"], refusal["unknown"] = append([]string{}, w.applied...), append([]string{}, w.unknown...)
	}
	return refusal
}

// apply applies the ops that are still to be applied, and marks their shards. It skips
// shards without a fate.
func (k *keyspace) apply(request ops, o *once) *written {
	w := &written{}
	done, fails := map[int]int{}, map[int]int{} // ops of fresh shards
	for n, op := range request.Ops {
		id, _ := strconv.ParseUint(op.ID, 10, 64) // checked by wrong
		shard := k.shardOf(id)
		f, judged := o.fates[shard]
		if f == fresh && judged {
			if done[shard]++; !k.change(id, k.floored(id, op.Add, op.Floor), op.Set) {
				fails[shard]++
				f = refused
			}
		}
		switch {
		case f == refused:
			problem := map[string]string{"code": "overflow", "message": "beyond int64", "field": fmt.Sprintf("ops[%d].add", n)}
			w.refused = append(w.refused, result{ID: op.ID, Error: problem})
			w.results = append(w.results, w.refused[len(w.refused)-1])
			continue
		case f == partly:
			w.unknown = append(w.unknown, op.ID)
		case judged && f != expired:
			w.applied = append(w.applied, op.ID)
		}
		w.results = append(w.results, k.result(id, nil))
	}
	for shard, n := range done {
		f := applied
		if fails[shard] == n {
			f = refused
		} else if fails[shard] > 0 {
			f = partly
		}
		o.mark(shard, f)
	}
	return w
}

// floored returns deltas limited by the op's floor and those of the columns.
func (k *keyspace) floored(id uint64, add map[string]int64, floor *int64) map[string]int64 {
	add = maps.Clone(add)
	row := k.get(id)
	for i, column := range k.Columns {
		limit, has := k.Floors[column]
		if floor != nil && (!has || *floor > limit) {
			limit, has = *floor, true
		}
		if has && add[column] < 0 && row[i]+add[column] < limit {
			add[column] = min(0, limit-row[i])
		}
	}
	return add
}

// change does one op, unless a sum would not fit.
func (k *keyspace) change(id uint64, add, set map[string]int64) bool {
	row := k.get(id)
	for i, column := range k.Columns {
		if v, ok := set[column]; ok {
			row[i] = v
		}
		v := add[column]
		if v > 0 && row[i] > math.MaxInt64-v || v < 0 && row[i] < math.MinInt64-v {
			return false
		}
		row[i] += v
	}
	k.put(id, row)
	return true
}
