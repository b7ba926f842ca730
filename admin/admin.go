// Package admin owns the operators' view of the cluster. It joins the catalog with the
// reports of the nodes, and turns operators' requests into commands on the catalog. It
// also restores shards: it writes the rows of a snapshot into a shard, through the shard's log.
//
// It never plans the placement and never carries out its steps; package cluster does. It
// never accesses a replica directly, but writes and reads through the node that leads the
// shard. It knows no HTTP.
//
// Invariant: a request that the current catalog forbids is refused before anything is changed.
// Once a restore has begun, the shard applies no write of an earlier restore. The shard applies
// no section of a source until it has all restored rows.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
)

// Config configures a Cluster. Its functions must be safe for concurrent use.
type Config struct {
	// Node returns this node. It returns an error until the node has joined a cluster.
	Node func() (*shard.Node, error)
	// Alive reports whether gossip considers the node with this key alive.
	Alive func(key string) bool
	// JoinsOthers is set if the settings name other nodes with which to form a cluster.
	JoinsOthers bool
	// SavedSources returns all sources for a backup; its JSON is a list of clientadmin.SavedSource. It is nil on
	// a node that makes no backups.
	SavedSources func(context.Context) (any, error)
	Logger       *slog.Logger
}

// Cluster serves operators' requests through this node.
type Cluster struct {
	cfg      Config
	restores restores
}

// New returns the cluster of a node.
func New(cfg Config) *Cluster { return &Cluster{cfg: cfg} }

// View joins the catalog with the reports of the nodes that answer within a second.
func (a *Cluster) View(ctx context.Context) (*View, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	status := n.Status()
	view := gather(n.Catalog(), n.Reports(ctx), status.ClusterID, a.cfg.Alive)
	view.ClusterName = status.ClusterName
	if len(view.Nodes) == 1 { // this is the catalog's only node
		view.Nodes[0].JoinIgnored = a.cfg.JoinsOthers
	}
	return view, nil
}

// Digests returns the digests of all replicas whose nodes answer within a second.
func (a *Cluster) Digests(ctx context.Context) ([]clientadmin.GroupDigests, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	return digests(n.Catalog(), n.MarkedReports(ctx)), nil
}

// Plan returns the next steps of the placement.
func (a *Cluster) Plan(ctx context.Context) ([]clientadmin.PlanStep, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	raw, err := n.AskCatalogLeader(ctx, PlanCall, nil)
	if err != nil {
		return nil, err
	}
	steps := []clientadmin.PlanStep{} // the leader's plan names nodes by key
	if err := json.Unmarshal(raw, &steps); err != nil {
		return nil, fmt.Errorf("cannot read the plan of the catalog's leader: %w", err)
	}
	name := Names(n.Catalog())
	for i := range steps {
		s := &steps[i]
		s.Add, s.Remove = name.all(s.Add), name.all(s.Remove)
		s.From, s.To, s.Node, s.Reason = name[s.From], name[s.To], name[s.Node], name.replaceKeys(s.Reason)
	}
	return steps, nil
}

// PlanCall is the name of the call that requests the next steps of the placement from the catalog's
// leader.
const PlanCall = "cluster.plan"

// OpenSnapshot takes a snapshot of a shard. It returns an ElsewhereError when another node
// leads the group. The caller closes the snapshot.
func (a *Cluster) OpenSnapshot(ctx context.Context, group uint32) (*replica.Snapshot, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	s, err := n.OpenSnapshot(ctx, group)
	if errors.Is(err, errs.ErrNoLeader) {
		leader, known := n.Catalog().Nodes[n.LeaderOf(group)]
		if self := n.Status().Node; known && leader.Name != self {
			return nil, &ElsewhereError{HTTPAddr: dialledHTTP(leader)}
		}
	}
	return s, err
}

// dialledHTTP returns the address at which others reach a node's HTTP API. If the node listens on
// every interface, the address has the host of the cluster address.
func dialledHTTP(n catalog.Node) string {
	host, port, err := net.SplitHostPort(n.HTTPAddr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		if cluster, _, err := net.SplitHostPort(n.ClusterAddr); err == nil {
			return net.JoinHostPort(cluster, port)
		}
	}
	return n.HTTPAddr
}

// RestoreShard replaces the rows of a shard by those of a snapshot.
func (a *Cluster) RestoreShard(ctx context.Context, group uint32, stream io.Reader, o RestoreOptions) (raftfsm.SnapshotFacts, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	// This node's copy of the catalog may lack a growth that was begun through another node, or its new groups.
	until, cancel := context.WithTimeout(ctx, restoreReadTimeout)
	defer cancel()
	if err := n.CatchUp(until); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	ks, _, err := n.ShardOf(group)
	if err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	defer a.restores.begin(ks.Name)()
	if k := n.Catalog().Keyspaces[ks.Name]; k.Growth != nil {
		return raftfsm.SnapshotFacts{}, refusedf("keyspace %s grows to %d shards: restore it after the growth, or withdraw the growth", k.Name, k.Growth.Shards)
	}
	return RestoreShard(ctx, n, group, stream, o)
}

// Change begins a change, or reports that there is nothing to do. It does not wait until
// data is moved.
func (a *Cluster) Change(ctx context.Context, change Change) (*clientadmin.Changed, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	// This node's copy of the catalog may lack a change that was made through another node.
	if err := n.CatchUp(ctx); err != nil {
		return nil, err
	}
	return change.make(ctx, &operation{node: n, alive: a.cfg.Alive, catalog: n.Catalog()})
}

// NodeNames holds the names of nodes as operators read them, by key.
type NodeNames map[string]string

// Names returns the names of the catalog's nodes, by key. If a leaving node shares its name with
// another node, Names returns the leaving node's key instead.
func Names(view *catalog.View) NodeNames {
	of := map[string][]string{}
	for key, node := range view.Nodes {
		of[node.Name] = append(of[node.Name], key)
	}
	called := NodeNames{}
	for name, keys := range of {
		for _, key := range keys {
			called[key] = key
			if len(keys) == 1 || view.Nodes[key].State != catalog.NodeLeaving {
				called[key] = name
			}
		}
	}
	return called
}

// replaceKeys returns text with the name of each node in place of its key.
func (n NodeNames) replaceKeys(text string) string {
	for key, name := range n {
		text = strings.ReplaceAll(text, key, name)
	}
	return text
}

// all returns the names of the nodes with these keys, sorted. For a node that was removed, it
// returns the key.
func (n NodeNames) all(keys []string) []string {
	called := make([]string, len(keys))
	for i, key := range keys {
		if called[i] = n[key]; called[i] == "" {
			called[i] = key
		}
	}
	slices.Sort(called)
	return called
}
