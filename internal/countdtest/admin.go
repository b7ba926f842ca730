package countdtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Node is a node in /v1/admin/nodes. Leads and Replicas are counted from the groups.
type Node struct {
	ID           string   `json:"id"`
	Key          string   `json:"key"`
	Zone         string   `json:"zone"`
	State        string   `json:"state"`
	Alive        bool     `json:"alive"`
	Answers      bool     `json:"answers"`
	NotReady     string   `json:"not_ready"`
	Life         string   `json:"life"`
	Version      string   `json:"version"`
	VersionMax   int      `json:"version_max"`
	Leads        int      `json:"leads"`
	Replicas     int      `json:"replicas"`
	MemoryFull   bool     `json:"memory_full"`
	Insecure     bool     `json:"insecure,omitempty"`
	CertProblems []string `json:"cert_problems,omitempty"`
	JoinIgnored  bool     `json:"join_ignored,omitempty"`
	DiskFull     bool     `json:"disk_full"`
	DiskHangs    bool     `json:"disk_hangs,omitempty"`
	HTTPAddr     string   `json:"http_addr"`
}

// Group is a group in /v1/admin/groups.
type Group struct {
	ID        uint32   `json:"id"`
	Keyspace  string   `json:"keyspace"`
	Shard     int      `json:"shard"`
	Leader    string   `json:"leader"`
	Target    []string `json:"target"`
	Voters    []string `json:"voters"`
	NonVoters []string `json:"non_voters"`
	Rows      uint64   `json:"rows"`
	Bytes     uint64   `json:"bytes"`
	ColdRows  uint64   `json:"cold_rows"`
	ColdBytes uint64   `json:"cold_bytes"`

	SealedRows  uint64    `json:"sealed_rows"`
	SealedBytes uint64    `json:"sealed_bytes"`
	Replicas    []Replica `json:"replicas"`

	Misfit map[string]any `json:"id_layout_misfit,omitempty"`
}

// Replica is a replica of a group in /v1/admin/groups and /v1/admin/digests.
type Replica struct {
	Node         string `json:"node"`
	Role         string `json:"role"`
	AppliedIndex uint64 `json:"applied_index"`
	Lag          uint64 `json:"lag"`
	ColdDamaged  bool   `json:"cold_damaged,omitempty"`
	Digest       string `json:"digest"` // "" for that of the fake's rows
	Marks        []Mark `json:"marks"`

	Entries []EntryMark `json:"entries"`
}

// EntryMark is an applied entry of a log.
type EntryMark struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	CRC   string `json:"crc"`
}

// Mark is a digest at an index.
type Mark struct {
	Index  uint64 `json:"index"`
	Digest string `json:"digest"`
}

// Version is the cluster version.
type Version struct {
	Version int  `json:"version"`
	Max     int  `json:"max"`
	Held    bool `json:"held"`
}

// Source is a source in /v1/admin/sources.
type Source struct {
	Name       string          `json:"name"`
	Number     string          `json:"number"`
	Origin     string          `json:"origin,omitempty"`
	Config     json.RawMessage `json:"config"`
	Partitions json.RawMessage `json:"partitions"`
}

// restoreSource creates a source from a backup.
func (c *Cluster) restoreSource(body []byte) (int, any) {
	var s Source
	if err := json.Unmarshal(body, &s); err != nil {
		return 400, refuse("invalid_argument", err.Error(), "body")
	}
	i := slices.IndexFunc(c.Sources, func(is Source) bool { return is.Name == s.Name })
	switch {
	case i < 0:
		s.Origin, s.Number = s.Number, "1"
		c.Sources = append(c.Sources, s)
	case c.Sources[i].Origin != s.Number:
		return 409, refuse("refused", "there is a source of this name", "")
	}
	return 200, map[string]any{"name": s.Name, "state": "paused"}
}

// Cluster is the nodes and groups that the fake reports.
type Cluster struct {
	Nodes   []Node
	Groups  []Group
	Version Version
	Steps   []map[string]any // of the plan
	Sources []Source         // as a backup has them
	Cold    map[string]*Cold // of nodes, by name; created by the first order
	// ColdRefused, unless "", is why no order of cold rows is followed.
	ColdRefused string
	// Looked, if not nil, is called before each answer of /v1/admin and may change it.
	Looked func(c *Cluster, method, path string)
}

// SetCluster makes the fake the first of these nodes, each of which holds every group; they
// lead them in turn. Before that the server has one node n1.
func (s *Server) SetCluster(nodes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cluster = &Cluster{Version: Version{Version: 1, Max: 1}}
	for i, name := range nodes {
		s.mu.cluster.Nodes = append(s.mu.cluster.Nodes, Node{
			ID: name, Key: name + ".0000000" + strconv.Itoa(i), State: "active", Alive: true, Answers: true, Life: "first",
			Version: "test", VersionMax: 1, HTTPAddr: strings.TrimPrefix(s.URL, "http://"),
		})
	}
	number := uint32(0)
	add := func(keyspace string, shard int) {
		g := Group{
			ID: number, Keyspace: keyspace, Shard: shard, Leader: nodes[int(number)%len(nodes)],
			Target: slices.Clone(nodes), Voters: slices.Clone(nodes), NonVoters: []string{},
		}
		for _, name := range nodes {
			g.Replicas = append(g.Replicas, Replica{Node: name, Role: "follower", AppliedIndex: 100, Marks: []Mark{}, Entries: []EntryMark{}})
		}
		s.mu.cluster.Groups = append(s.mu.cluster.Groups, g)
		number++
	}
	add("meta", 0)
	for _, k := range s.mu.keyspaces {
		for shard := range k.Shards {
			add(k.Name, shard)
		}
	}
}

// EditCluster changes the cluster that the fake reports.
func (s *Server) EditCluster(edit func(*Cluster)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s.mu.cluster)
}

// Node returns a node by name.
func (c *Cluster) Node(name string) *Node {
	i := slices.IndexFunc(c.Nodes, func(n Node) bool { return n.ID == name || n.Key == name })
	if i < 0 {
		return nil
	}
	return &c.Nodes[i]
}

func (s *Server) adminLocked(r *http.Request, body []byte) (int, any) {
	c := s.mu.cluster
	if c.Looked != nil {
		c.Looked(c, r.Method, r.URL.Path)
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/admin/"), "/")
	switch route := r.Method + " " + parts[0]; {
	case route == "GET nodes" && len(parts) == 1:
		return 200, map[string]any{"cluster_id": s.mu.clusterID, "nodes": c.counted()}
	case route == "GET groups" && len(parts) == 1, route == "GET digests":
		return 200, map[string]any{"groups": s.groupsLocked()}
	case route == "GET sources":
		return 200, map[string]any{"sources": append([]Source{}, c.Sources...)}
	case route == "POST sources":
		return c.restoreSource(body)
	case route == "GET plan":
		return 200, map[string]any{"steps": append([]map[string]any{}, c.Steps...)}
	case route == "GET version":
		return 200, c.Version
	case route == "POST version":
		return c.changeVersion(body)
	case route == "GET cold":
		return 200, map[string]any{"nodes": s.coldLocked()}
	case route == "POST cold" && len(parts) == 2:
		return s.orderColdLocked(parts[1], body)
	case route == "POST nodes" && len(parts) == 3:
		return c.changeNode(parts[1], parts[2])
	case len(parts) == 3 && parts[0] == "groups":
		return s.groupCallLocked(r, parts[1], parts[2], body)
	}
	return 404, refuse("not_found", "no such path", "")
}

func (c *Cluster) counted() []Node {
	nodes := slices.Clone(c.Nodes)
	for i := range nodes {
		for _, g := range c.Groups {
			if g.Leader == nodes[i].ID {
				nodes[i].Leads++
			}
			if slices.Contains(slices.Concat(g.Voters, g.NonVoters), nodes[i].ID) {
				nodes[i].Replicas++
			}
		}
	}
	return nodes
}

// groupsLocked sets the sizes of the groups from the rows.
func (s *Server) groupsLocked() []Group {
	groups := slices.Clone(s.mu.cluster.Groups)
	for i := range groups {
		g := &groups[i]
		g.Rows = uint64(len(s.shardLocked(g)))
		g.Bytes, g.ColdRows, g.ColdBytes = 20*g.Rows, g.Rows, 5*g.Rows
		g.SealedRows, g.SealedBytes = g.Rows, 7*g.Rows
		g.Replicas = slices.Clone(g.Replicas)
		for j := range g.Replicas {
			if r := &g.Replicas[j]; r.Digest == "" {
				r.Digest = fmt.Sprintf("%016x", g.Rows)
			}
			if g.Replicas[j].Node == g.Leader {
				g.Replicas[j].Role = "leader"
			}
		}
	}
	return groups
}

// shardLocked returns the rows of a group's shard.
func (s *Server) shardLocked(g *Group) map[uint64][]int64 {
	rows := map[uint64][]int64{}
	if k := s.find(g.Keyspace); k != nil {
		for id, row := range k.rows {
			if k.shardOf(id) == g.Shard {
				rows[id] = row
			}
		}
	}
	return rows
}

func (c *Cluster) changeVersion(body []byte) (int, any) {
	var request struct{ Hold, Finalize *bool }
	if err := strict(body, &request); err != nil || (request.Hold == nil) == (request.Finalize == nil) {
		return 400, refuse("invalid_argument", "body: one of hold and finalize", "body")
	}
	was := c.Version
	if request.Finalize != nil {
		c.Version = Version{Version: c.Version.Max, Max: c.Version.Max}
	} else {
		c.Version.Held = *request.Hold
	}
	return 200, map[string]any{"changed": c.Version != was, "version": c.Version}
}

// changeNode hands over at once the groups of a node that should lead nothing.
func (c *Cluster) changeNode(name, verb string) (int, any) {
	n := c.Node(name)
	if n == nil {
		return 404, refuse("not_found", "no such node", "")
	}
	state := map[string]string{"drain": "draining", "undrain": "active", "remove": "leaving"}[verb]
	heir := slices.IndexFunc(c.Nodes, func(o Node) bool { return o.ID != n.ID && o.State == "active" && o.Alive })
	if state != "active" && heir < 0 {
		return 409, refuse("refused", "no other node is active and alive to take over from "+n.ID, "")
	}
	changed := n.State != state
	n.State = state
	for i := range c.Groups {
		if g := &c.Groups[i]; state != "active" && g.Leader == n.ID {
			g.Leader = c.Nodes[heir].ID
		}
	}
	return 200, map[string]any{"changed": changed, "node": map[string]string{"id": n.ID, "key": n.Key, "state": state}}
}

func (s *Server) groupCallLocked(r *http.Request, number, verb string, body []byte) (int, any) {
	i := slices.IndexFunc(s.mu.cluster.Groups, func(g Group) bool { return strconv.Itoa(int(g.ID)) == number })
	if i < 0 {
		return 404, refuse("not_found", "no such group", "")
	}
	g := &s.mu.cluster.Groups[i]
	var request struct{ From, To string }
	switch verb {
	case "snapshot":
		return s.snapshotLocked(g)
	case "restore":
		return s.restoreLocked(g, body, r.URL.Query())
	}
	if err := strict(body, &request); err != nil || s.mu.cluster.Node(request.To) == nil {
		return 400, refuse("invalid_argument", "to: no such node", "to")
	}
	changed := g.Leader != request.To
	if verb == "transfer" {
		g.Leader = request.To
	} else if at := slices.Index(g.Target, request.From); at < 0 {
		return 409, refuse("refused", "group "+number+" is not to be on "+request.From, "")
	} else {
		g.Target[at] = request.To
		g.Voters = slices.Clone(g.Target)
		changed = true
	}
	return 200, map[string]any{"changed": changed, "group": map[string]any{"id": g.ID, "leader": g.Leader, "target": g.Target}}
}

// stream is an answer that is not JSON.
type stream struct {
	headers map[string]string
	body    []byte
}

func (s *Server) snapshotLocked(g *Group) (int, any) {
	rows := s.shardLocked(g)
	body, err := json.Marshal(rows)
	if err != nil {
		panic(err) // maps of numbers have JSON
	}
	return 200, stream{body: body, headers: map[string]string{
		"Countd-Index": "100", "Countd-Rows": strconv.Itoa(len(rows)), "Countd-Digest": fmt.Sprintf("%016x", len(rows)),
	}}
}

func (s *Server) restoreLocked(g *Group, body []byte, query url.Values) (int, any) {
	var rows map[uint64][]int64
	if err := json.Unmarshal(body, &rows); err != nil {
		return 400, refuse("invalid_argument", "not a snapshot that this shard can take", "")
	}
	was, k := s.shardLocked(g), s.find(g.Keyspace)
	if len(was) > 0 && query.Get("force") != "true" {
		return 409, refuse("refused", "the shard has rows, outboxes or members", "")
	}
	for id := range was {
		delete(k.rows, id)
	}
	for id, row := range rows {
		if query.Has("columns") {
			row = k.placed(row, strings.Split(query.Get("columns"), ","))
		}
		k.put(id, row)
	}
	return 200, map[string]any{"group": g.ID, "rows": len(rows), "digest": fmt.Sprintf("%016x", len(rows))}
}

// placed returns a row of columns of these names as one of k.
func (k *keyspace) placed(row []int64, names []string) []int64 {
	all := make([]int64, len(k.Columns))
	for i, count := range row {
		if at := slices.Index(k.Columns, names[i]); at >= 0 {
			all[at] = count
		}
	}
	return all
}
