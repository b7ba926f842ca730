package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/proctest"
)

// fakeServer answers the admin API for a cluster of several nodes. The cluster can be in states
// that a test cannot cause with real nodes.
type fakeServer struct {
	*httptest.Server

	mu      sync.Mutex
	cluster fakeCluster
}

// fakeCluster is the state that a fakeServer reports. It computes the fields Leads and Replicas of
// each node from the groups.
type fakeCluster struct {
	Nodes   []admin.ClusterNode
	Groups  []fakeGroup
	Version admin.ClusterVersion
	Steps   []admin.PlanStep
	Rows    uint64                     // number of rows in posts on each node
	Cold    map[string]*admin.ColdWork // jobs of the nodes, by name of the node
	// ColdRefused is the reason with which nodes refuse orders about cold rows. If it is "", they
	// accept the orders.
	ColdRefused string
	// Looked, if not nil, is called before each answer of /v1/admin and may change the cluster.
	Looked func(c *fakeCluster, method, path string)
}

// fakeGroup is a group in /v1/admin/groups and /v1/admin/digests.
type fakeGroup struct {
	admin.ClusterGroup
	Replicas []fakeReplica `json:"replicas"`
}

type fakeReplica struct {
	admin.Replica
	Digest  string             `json:"digest"` // "" for 0000000000000000
	Marks   []admin.DigestMark `json:"marks"`
	Entries []admin.EntryMark  `json:"entries"`
}

// newFake returns a server for a cluster of these nodes. Each node has a replica of every group,
// and the nodes lead the groups in turn.
func newFake(t *testing.T, nodes ...string) *fakeServer {
	s := &fakeServer{cluster: fakeCluster{Version: admin.ClusterVersion{Version: 1, Max: 1}, Cold: map[string]*admin.ColdWork{}}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	c := &s.cluster
	for i, name := range nodes {
		c.Nodes = append(c.Nodes, admin.ClusterNode{
			ID: name, Key: name + ".0000000" + strconv.Itoa(i), State: "active", Alive: true, Answers: true, Life: "first",
			Version: "test", VersionMax: 1, HTTPAddr: strings.TrimPrefix(s.URL, "http://"),
		})
	}
	for number, name := range []string{"meta", "posts", "posts", "posts", "posts", "users", "users", "users", "users"} {
		g := fakeGroup{ClusterGroup: admin.ClusterGroup{
			ID: uint32(number), Keyspace: name, Shard: max(0, number-1) % 4, Leader: nodes[number%len(nodes)],
			Target: slices.Clone(nodes), Voters: slices.Clone(nodes), NonVoters: []string{},
		}}
		for _, name := range nodes {
			g.Replicas = append(g.Replicas, fakeReplica{admin.Replica{Node: name, Role: "follower", AppliedIndex: 100}, "", []admin.DigestMark{}, []admin.EntryMark{}})
		}
		c.Groups = append(c.Groups, g)
	}
	return s
}

// three returns a fake cluster of three nodes.
func three(t *testing.T) (*fakeServer, *proctest.Invocation) {
	server := newFake(t, "n1", "n2", "n3")
	return server, against(t, server.URL)
}

// edit calls edit with the cluster that the server reports, under the server's lock.
func (s *fakeServer) edit(edit func(*fakeCluster)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(&s.cluster)
}

// node returns a node by name or key, or nil.
func (c *fakeCluster) node(name string) *admin.ClusterNode {
	i := slices.IndexFunc(c.Nodes, func(n admin.ClusterNode) bool { return n.ID == name || n.Key == name })
	if i < 0 {
		return nil
	}
	return &c.Nodes[i]
}

// object is a JSON object of an answer.
type object = map[string]any

func (s *fakeServer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller has closed the connection
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status, answer := s.cluster.answer(r, body)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // ignore the error: the caller has closed the connection
}

func refuse(status int, code, message, field string) (int, any) {
	return status, object{"error": object{"code": code, "message": message, "field": field}}
}

func strict(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func (c *fakeCluster) answer(r *http.Request, body []byte) (int, any) {
	path, isAdmin := strings.CutPrefix(r.URL.Path, "/v1/admin/")
	if isAdmin && c.Looked != nil {
		c.Looked(c, r.Method, r.URL.Path)
	}
	parts := strings.Split(path, "/")
	switch route := r.Method + " " + path; {
	case route == "GET /readyz":
		return 200, object{"status": "ready"}
	case route == "GET /v1/version":
		return 200, object{"version": "test"}
	case route == "GET /v1/cluster":
		return 200, admin.Cluster{ClusterID: "test"}
	case route == "GET /v1/keyspaces":
		return 200, object{"keyspaces": []client.Keyspace{{Name: "posts", Kind: "counters", Shards: 4}, {Name: "users", Kind: "counters", Shards: 4}}}
	case route == "GET nodes":
		return 200, admin.ClusterNodes{ClusterID: "test", Nodes: c.counted()}
	case route == "GET groups", route == "GET digests":
		return 200, object{"groups": c.groups()}
	case route == "GET plan":
		return 200, object{"steps": append([]admin.PlanStep{}, c.Steps...)}
	case route == "GET version":
		return 200, c.Version
	case route == "POST version":
		return c.changeVersion(body)
	case route == "GET cold":
		return 200, object{"nodes": c.cold()}
	case isAdmin && r.Method == http.MethodPost && len(parts) == 2 && parts[0] == "cold":
		return c.orderCold(parts[1], body)
	case isAdmin && r.Method == http.MethodPost && len(parts) == 3 && parts[0] == "nodes":
		return c.changeNode(parts[1], parts[2])
	case isAdmin && r.Method == http.MethodPost && len(parts) == 3 && parts[0] == "groups":
		return c.changeGroup(parts[1], parts[2], body)
	}
	return refuse(404, "not_found", "no such path", "")
}

// counted returns the nodes with their Leads and Replicas, computed from the groups.
func (c *fakeCluster) counted() []admin.ClusterNode {
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

// groups returns the groups with the roles and digests of their replicas.
func (c *fakeCluster) groups() []fakeGroup {
	groups := slices.Clone(c.Groups)
	for i := range groups {
		g := &groups[i]
		g.Replicas = slices.Clone(g.Replicas)
		for j := range g.Replicas {
			if r := &g.Replicas[j]; r.Digest == "" {
				r.Digest = fmt.Sprintf("%016x", 0)
			}
			if g.Replicas[j].Node == g.Leader {
				g.Replicas[j].Role = "leader"
			}
		}
	}
	return groups
}

func (c *fakeCluster) changeVersion(body []byte) (int, any) {
	var request struct{ Hold, Finalize *bool }
	if err := strict(body, &request); err != nil || (request.Hold == nil) == (request.Finalize == nil) {
		return refuse(400, "invalid_argument", "body: one of hold and finalize", "body")
	}
	was := c.Version
	if request.Finalize != nil {
		c.Version = admin.ClusterVersion{Version: c.Version.Max, Max: c.Version.Max}
	} else {
		c.Version.Held = *request.Hold
	}
	return 200, admin.Changed{Changed: c.Version != was, Version: &c.Version}
}

// changeNode changes the state of a node. Unless the new state is active, it gives the groups that
// the node leads to another node.
func (c *fakeCluster) changeNode(name, verb string) (int, any) {
	n := c.node(name)
	if n == nil {
		return refuse(404, "not_found", "no such node", "")
	}
	state := map[string]string{"drain": "draining", "undrain": "active", "remove": "leaving"}[verb]
	heir := slices.IndexFunc(c.Nodes, func(o admin.ClusterNode) bool { return o.ID != n.ID && o.State == "active" && o.Alive })
	if state != "active" && heir < 0 {
		return refuse(409, "refused", "no other node is active and alive to take over from "+n.ID, "")
	}
	changed := n.State != state
	n.State = state
	for i := range c.Groups {
		if g := &c.Groups[i]; state != "active" && g.Leader == n.ID {
			g.Leader = c.Nodes[heir].ID
		}
	}
	return 200, admin.Changed{Changed: changed, Node: &admin.ChangedNode{ID: n.ID, Key: n.Key, State: state}}
}

func (c *fakeCluster) changeGroup(number, verb string, body []byte) (int, any) {
	i := slices.IndexFunc(c.Groups, func(g fakeGroup) bool { return strconv.Itoa(int(g.ID)) == number })
	if i < 0 {
		return refuse(404, "not_found", "no such group", "")
	}
	g := &c.Groups[i]
	var request struct{ From, To string }
	if err := strict(body, &request); err != nil || c.node(request.To) == nil {
		return refuse(400, "invalid_argument", "to: no such node", "to")
	}
	changed := g.Leader != request.To
	if verb == "transfer" {
		g.Leader = request.To
	} else if at := slices.Index(g.Target, request.From); at < 0 {
		return refuse(409, "refused", "group "+number+" is not to be on "+request.From, "")
	} else {
		g.Target[at] = request.To
		g.Voters = slices.Clone(g.Target)
		changed = true
	}
	return 200, admin.Changed{Changed: changed, Group: &admin.ChangedGroup{ID: g.ID, Leader: g.Leader, Target: g.Target}}
}

// cold returns the nodes' reports about their rows on disk. After each report, a job moves up to
// half of its rows.
func (c *fakeCluster) cold() (nodes []admin.ColdNode) {
	for _, n := range c.Nodes {
		if !n.Answers {
			nodes = append(nodes, admin.ColdNode{Node: n.ID})
			continue
		}
		node := admin.ColdNode{
			Node: n.ID, Answers: true, AfterSeconds: 3600, DiskBytes: 1 << 20, CacheBytes: 1 << 16, CacheHits: 900, Reads: 100,
			ReadP50: 0.00028, ReadP99: 0.0018, Scrub: admin.ColdScrub{EverySeconds: 604800, Blocks: 10, Bytes: 40000, PassBytes: 500, PassOf: 1000},
			Keyspaces: []admin.ColdKeyspace{
				{Keyspace: "posts", Rows: c.Rows, MemoryBytes: 20 * c.Rows, ColdRows: c.Rows, ColdBytes: 5 * c.Rows, Generations: 1, DueRows: 1234},
				{Keyspace: "users"},
			},
		}
		if w := c.Cold[n.ID]; w != nil {
			was := *w
			node.Work = &was
			w.Rows = min(w.Of, w.Rows+(w.Of+1)/2)
			w.Running = was.Running && was.Rows < was.Of
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func (c *fakeCluster) orderCold(verb string, body []byte) (int, any) {
	var order struct {
		Keyspace, Before string
		DryRun           bool  `json:"dry_run"`
		OlderThan        int64 `json:"older_than_seconds"`
	}
	err := strict(body, &order)
	switch {
	case err != nil:
		return refuse(400, "invalid_argument", "body: "+err.Error(), "body")
	case order.Keyspace != "" && order.Keyspace != "posts" && order.Keyspace != "users":
		return refuse(404, "unknown_keyspace", "no such keyspace", "")
	case c.ColdRefused != "":
		return refuse(409, "refused", c.ColdRefused, "")
	case order.Keyspace == "users" && order.OlderThan > 0:
		return refuse(400, "invalid_argument", "older_than_seconds: ids of users carry no time", "older_than_seconds")
	}
	answer := admin.ColdOrdered{ID: "0123456789abcdef"}
	if order.DryRun {
		answer.ID = ""
	}
	for _, n := range c.Nodes {
		if !n.Answers {
			answer.Nodes = append(answer.Nodes, admin.ColdOrderedNode{Node: n.ID})
			continue
		}
		answer.Nodes = append(answer.Nodes, admin.ColdOrderedNode{Node: n.ID, Answers: true, Rows: c.Rows})
		if verb != "stop" && !order.DryRun {
			c.Cold[n.ID] = &admin.ColdWork{ID: answer.ID, Verb: verb, Keyspace: order.Keyspace, Began: time.Now(), Running: true, Of: c.Rows}
		}
	}
	return 200, answer
}

// invoke returns an invocation of countctl with some commands against the server at addr.
func invoke(t *testing.T, addr string, groups ...cli.Commands) *proctest.Invocation {
	return proctest.NewInvocation(t, addr, func(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer, env func(string) string) int {
		return cli.Run(ctx, args, cli.Terminal{In: in, Out: out, Err: errOut, Env: env}, groups...)
	})
}
