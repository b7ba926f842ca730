package countdtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// answer serves a request. If shards is not nil, it applies only the parts of a write for
// these shards. The answer is encoded before the next request may change what it is of.
func (s *Server) answer(r *http.Request, body []byte, shards []int) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, answer := s.answerLocked(r, body, shards)
	if _, is := answer.(stream); is {
		return status, answer
	}
	text, err := json.Marshal(answer)
	if err != nil {
		panic(err) // all answers have JSON
	}
	return status, json.RawMessage(text)
}

func (s *Server) answerLocked(r *http.Request, body []byte, shards []int) (int, any) {
	if parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/counters/"), "/"); len(parts) == 2 && strings.HasPrefix(r.URL.Path, "/v1/counters/") {
		k := s.find(parts[0])
		if k == nil || k.Kind != "counters" {
			return 404, refuse("unknown_keyspace", "no keyspace "+parts[0], "")
		}
		return s.counters(r, k, parts[1], body, shards)
	}
	if strings.HasPrefix(r.URL.Path, "/v1/members/") {
		return s.membersLocked(r, body)
	}
	return s.operations(r, body)
}

func (s *Server) operations(r *http.Request, body []byte) (int, any) {
	if strings.HasPrefix(r.URL.Path, "/v1/admin/") {
		return s.adminLocked(r, body)
	}
	switch route := r.Method + " " + r.URL.Path; {
	case route == "GET /readyz":
		if s.mu.notReady != "" {
			return 503, refuse("no_leader", s.mu.notReady, "")
		}
		return 200, map[string]string{"status": "ready"}
	case route == "GET /v1/version":
		return 200, map[string]string{"version": "test"}
	case route == "GET /v1/cluster":
		return 200, s.cluster()
	case route == "GET /v1/keyspaces":
		return 200, map[string]any{"keyspaces": s.mu.keyspaces}
	case route == "POST /v1/keyspaces":
		return s.create(body)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/columns"):
		return s.addColumns(strings.Split(r.URL.Path, "/")[3], body)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/everywhere"):
		return s.setEverywhere(strings.Split(r.URL.Path, "/")[3], body)
	case r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, "/v1/keyspaces/"):
		return s.drop(strings.Split(r.URL.Path, "/")[3:])
	}
	return 404, refuse("not_found", "no such path", "")
}

func (s *Server) cluster() any {
	type object = map[string]any
	groups := []object{{"id": 0, "keyspace": "meta", "role": "leader", "leader": "n1", "digest": "0000000000000000"}}
	for _, k := range s.mu.keyspaces {
		groups = append(groups, object{
			"id": k.group, "keyspace": k.Name, "role": "leader", "leader": "n1", "applied_index": s.mu.writes,
			"digest": fmt.Sprintf("%016x", len(k.rows)), "rows": len(k.rows), "bytes": 20 * len(k.rows),
		})
	}
	return object{
		"cluster_id": s.mu.clusterID,
		"nodes":      []object{{"id": "n1", "state": "alive", "version": "test", "http_addr": "127.0.0.1:1"}},
		"groups":     groups,
	}
}

// column is a column in a request: its name, or an object.
type column struct {
	Name  string
	Floor *int64
	told  bool
}

func (c *column) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &c.Name) == nil {
		return nil
	}
	type object column
	c.told = bytes.Contains(text, []byte(`"floor"`))
	return strict(text, (*object)(c))
}

// take adds missing columns, and changes floors.
func (k *keyspace) take(columns []column) {
	for _, c := range columns {
		if !slices.Contains(k.Columns, c.Name) {
			k.Columns = append(k.Columns, c.Name)
		}
		if k.Floors == nil {
			k.Floors = map[string]int64{}
		}
		if c.told {
			delete(k.Floors, c.Name)
		}
		if c.Floor != nil {
			k.Floors[c.Name] = *c.Floor
		}
	}
}

func (s *Server) create(body []byte) (int, any) {
	var request struct {
		Name    string
		Columns []column
		Shards  int

		Sharding string
	}
	if err := strict(body, &request); err != nil {
		return 400, refuse("invalid_argument", err.Error(), "")
	}
	made := keyspace{Name: request.Name, Kind: "counters", Shards: request.Shards, Sharding: request.Sharding, rows: map[uint64][]int64{}}
	made.take(request.Columns)
	if made.Sharding == "modulo" {
		made.Sharding = ""
	}
	if k := s.find(made.Name); k != nil {
		if !slices.Equal(k.Columns, made.Columns) || !maps.Equal(k.Floors, made.Floors) || made.Shards != 0 && k.Shards != made.Shards || request.Sharding != "" && k.Sharding != made.Sharding {
			return 409, refuse("keyspace_exists", "the keyspace exists with other columns, floors, shards or sharding", "")
		}
		return 200, k
	}
	if made.Shards == 0 {
		made.Shards = 4
	}
	s.addLocked(&made)
	return 200, made
}

func (s *Server) addColumns(name string, body []byte) (int, any) {
	var request struct{ Columns []column }
	k := s.find(name)
	if k == nil {
		return 404, refuse("unknown_keyspace", "no keyspace "+name, "")
	}
	if err := strict(body, &request); err != nil {
		return 400, refuse("invalid_argument", err.Error(), "")
	}
	k.take(request.Columns)
	return 200, k
}

// drop drops a keyspace, or a column of one: path is NAME or NAME/columns/COLUMN.
func (s *Server) drop(path []string) (int, any) {
	k := s.find(path[0])
	switch {
	case k == nil:
		return 404, refuse("unknown_keyspace", "no such keyspace", "")
	case len(path) == 1 && (k.Name == "posts" || k.Name == "users"):
		return 409, refuse("refused", "keyspace "+k.Name+" is built in", "")
	case len(path) == 1:
		s.mu.keyspaces = slices.DeleteFunc(s.mu.keyspaces, func(other *keyspace) bool { return other == k })
		maps.DeleteFunc(s.mu.producers, func(at producerAt, _ *producer) bool { return at.keyspace == k.Name })
		maps.DeleteFunc(s.mu.forgotten, func(at producerAt, _ uint64) bool { return at.keyspace == k.Name })
		return 200, k
	}
	column := slices.Index(k.Columns, path[2])
	if column < 0 {
		return 404, refuse("not_found", "no such column", "")
	}
	k.number()
	k.Dropped = append(k.Dropped, k.numbers[column])
	slices.Sort(k.Dropped)
	k.numbers = slices.Delete(k.numbers, column, column+1)
	k.Columns = slices.Delete(slices.Clone(k.Columns), column, column+1)
	for id, row := range k.rows {
		if column < len(row) {
			k.rows[id] = slices.Delete(slices.Clone(row), column, column+1)
		}
	}
	return 200, k
}

// number numbers new columns.
func (k *keyspace) number() {
	for len(k.numbers) < len(k.Columns) {
		k.numbers = append(k.numbers, len(k.numbers)+len(k.Dropped))
	}
}

func (s *Server) setEverywhere(name string, body []byte) (int, any) {
	var request struct{ Everywhere bool }
	k := s.find(name)
	if k == nil {
		return 404, refuse("unknown_keyspace", "no keyspace "+name, "")
	}
	if err := strict(body, &request); err != nil {
		return 400, refuse("invalid_argument", err.Error(), "")
	}
	k.Everywhere = request.Everywhere
	return 200, k
}

func strict(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

type result struct {
	ID     string          `json:"id"`
	Counts json.RawMessage `json:"counts,omitempty"`
	Error  any             `json:"error,omitempty"`
}

func (k *keyspace) result(id uint64, columns []string) result {
	row, counts := k.get(id), []string{}
	for i, c := range k.Columns {
		if len(columns) == 0 || slices.Contains(columns, c) {
			counts = append(counts, fmt.Sprintf("%q:%d", c, row[i]))
		}
	}
	return result{ID: strconv.FormatUint(id, 10), Counts: json.RawMessage("{" + strings.Join(counts, ",") + "}")}
}

func (s *Server) counters(r *http.Request, k *keyspace, last string, body []byte, shards []int) (int, any) {
	switch {
	case r.Method == http.MethodPost && last == "get":
		return k.getMany(body)
	case r.Method == http.MethodPost && last == "scan":
		return k.scan(body)
	case r.Method == http.MethodPost && (last == "incr" || last == "set" || last == "correct"):
		return s.write(r, k, last, body, shards)
	}
	id, err := strconv.ParseUint(last, 10, 64)
	switch {
	case err != nil:
		return 400, refuse("invalid_argument", "id: not an unsigned 64-bit integer", "id")
	case r.Method == http.MethodGet:
		return 200, k.result(id, nil)
	case r.Method == http.MethodDelete:
		return s.remove(r, k, id)
	}
	return 405, refuse("method_not_allowed", "not that way", "")
}

func (k *keyspace) getMany(body []byte) (int, any) {
	var request struct {
		IDs     []string
		Columns []string
	}
	if err := strict(body, &request); err != nil || len(request.IDs) > 1000 {
		return 400, refuse("invalid_argument", fmt.Sprint("ids: ", err), "ids")
	}
	results := []result{}
	for _, text := range request.IDs {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 400, refuse("invalid_argument", "not an unsigned 64-bit integer", "ids")
		}
		results = append(results, k.result(id, request.Columns))
	}
	return 200, map[string]any{"results": results}
}

func (k *keyspace) scan(body []byte) (int, any) {
	var request struct {
		After   *string
		Limit   int
		Columns []string
		Skip    bool `json:"skip_unreadable"`
	}
	if err := strict(body, &request); err != nil || request.Limit < 1 || request.Limit > 10_000 {
		return 400, refuse("invalid_argument", fmt.Sprint("limit or body: ", err), "limit")
	}
	if len(k.lost) > 0 && !request.Skip {
		return 503, refuse("no_quorum", "no living node has a replica of a shard", "")
	}
	results, next := []result{}, any(nil)
	for _, id := range slices.Sorted(maps.Keys(k.rows)) {
		if request.After != nil {
			if after, _ := strconv.ParseUint(*request.After, 10, 64); id <= after {
				continue
			}
		}
		if len(results) == request.Limit {
			next = results[len(results)-1].ID
			break
		}
		results = append(results, k.result(id, request.Columns))
	}
	if len(k.lost) > 0 {
		return 200, map[string]any{"results": results, "next": next, "unreadable_shards": k.lost}
	}
	return 200, map[string]any{"results": results, "next": next}
}
