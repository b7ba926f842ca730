package countdtest

import "time"

// Cold is a node's rows on disk and its job, which moves half of the rest between two polls.
type Cold struct {
	ID       string    `json:"id"`
	Verb     string    `json:"verb"`
	Keyspace string    `json:"keyspace,omitempty"`
	Began    time.Time `json:"began"`
	Running  bool      `json:"running"`
	Rows     int       `json:"rows"`
	Of       int       `json:"of"`
	Failed   string    `json:"failed,omitempty"`
}

// coldLocked returns the reports of the nodes about their rows on disk: all rows of each
// keyspace.
func (s *Server) coldLocked() []map[string]any {
	nodes := []map[string]any{}
	for _, n := range s.mu.cluster.Nodes {
		if !n.Answers {
			nodes = append(nodes, map[string]any{"node": n.ID, "answers": false})
			continue
		}
		keyspaces := []map[string]any{}
		for _, k := range s.mu.keyspaces {
			rows := len(k.rows)
			keyspaces = append(keyspaces, map[string]any{
				"keyspace": k.Name, "rows": rows, "memory_bytes": 20 * rows, "cold_rows": rows, "cold_bytes": 5 * rows,
				"generations": 1, "due_rows": 1234, "damaged_shards": 0,
			})
		}
		node := map[string]any{
			"node": n.ID, "answers": true, "cold_after_seconds": 3600, "disk_bytes": 1 << 20, "cache_bytes": 1 << 16, "cache_hits": 900, "reads": 100,
			"read_p50_seconds": 0.00028, "read_p99_seconds": 0.0018, "keyspaces": keyspaces,
			"scrub": map[string]any{"every_seconds": 604800, "blocks": 10, "bytes": 40000, "pass_bytes": 500, "pass_of": 1000},
		}
		if w := s.mu.cluster.Cold[n.ID]; w != nil {
			node["work"] = *w
			w.Rows, w.Running = min(w.Of, w.Rows+(w.Of+1)/2), w.Running && w.Rows < w.Of
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func (s *Server) orderColdLocked(verb string, body []byte) (int, any) {
	var order struct {
		Keyspace, Before string
		DryRun           bool  `json:"dry_run"`
		OlderThan        int64 `json:"older_than_seconds"`
	}
	c := s.mu.cluster
	if err := strict(body, &order); err != nil {
		return 400, refuse("invalid_argument", "body: "+err.Error(), "body")
	}
	switch k := s.find(order.Keyspace); {
	case order.Keyspace != "" && k == nil:
		return 404, refuse("unknown_keyspace", "no such keyspace", "")
	case c.ColdRefused != "":
		return 409, refuse("refused", c.ColdRefused, "")
	case order.Keyspace == "users" && order.OlderThan > 0:
		return 400, refuse("invalid_argument", "older_than_seconds: ids of users carry no time", "older_than_seconds")
	}
	rows := 0
	for _, k := range s.mu.keyspaces {
		if order.Keyspace == "" || k.Name == order.Keyspace {
			rows += len(k.rows)
		}
	}
	id, nodes := "0123456789abcdef", []map[string]any{}
	if order.DryRun {
		id = ""
	}
	for _, n := range c.Nodes {
		if !n.Answers {
			nodes = append(nodes, map[string]any{"node": n.ID, "answers": false})
			continue
		}
		nodes = append(nodes, map[string]any{"node": n.ID, "answers": true, "rows": rows})
		if c.Cold == nil {
			c.Cold = map[string]*Cold{}
		}
		if verb != "stop" && !order.DryRun {
			c.Cold[n.ID] = &Cold{ID: id, Verb: verb, Keyspace: order.Keyspace, Began: time.Now(), Running: true, Of: rows}
		}
	}
	return 200, map[string]any{"id": id, "nodes": nodes}
}
