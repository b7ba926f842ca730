package shard

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// router finds the shards of a keyspace, and the nodes that hold a shard, lead it, or relay calls
// to its leader. It never reads or writes a shard; the types reader and writer do.
type router struct {
	registry    *registry
	node        string // key of this node
	catalog     *catalog.Catalog
	calls       *rpc.Calls
	alive       func(node string) bool // Config.Alive; may be nil
	draining    *atomic.Bool
	clusterHash uint32                          // from clusterHashOf; used in tokens and in the numbers of sources
	newest      func(ctx context.Context) error // leadership.CatalogClient.CatchUpView
}

// clusterHashOf returns the hash of a cluster's id for tokens and numbers of sources.
func clusterHashOf(id [16]byte) uint32 {
	return crc32.Checksum(id[:], crc32.MakeTable(crc32.Castagnoli))
}

// shardsOf returns the keyspace's shards and route.
func (t *router) shardsOf(ks *Keyspace) (*keyspaceShards, error) {
	if t.draining.Load() {
		return nil, errs.ErrDraining
	}
	shards := t.registry.groups.Load().byFirst[ks.FirstGroup]
	if shards == nil {
		return nil, orDropped(t.catalog.View(), ks.FirstGroup, fmt.Errorf("%w: keyspace %s is being created", errs.ErrNoLeader, ks.Name))
	}
	return shards, nil
}

// shardsToRead returns the keyspace's shards and route for a read. If the read's token has a part of a
// shard, that shard has split, and the route is by its parts. A client may forge a token, so
// shardsToRead does not publish that route.
func (t *router) shardsToRead(ks *Keyspace, opt *ReadOptions) (*keyspaceShards, error) {
	if len(opt.Token.At) > 0 && opt.Token.Cluster != t.clusterHash {
		return nil, fmt.Errorf("%w: it is of another cluster", errs.ErrBadToken)
	}
	shards, err := t.shardsOf(ks)
	if err == nil && !t.knows(opt.Token) {
		if err = t.awaitGroups(opt); err == nil {
			shards, err = t.shardsOf(ks)
		}
	}
	for i := 0; err == nil && i < len(opt.Token.At); i++ {
		g := t.registry.shardOf(opt.Token.At[i].Group)
		if g == nil || g.shard >= len(shards.all) || g != shards.all[g.shard] {
			continue
		}
		if parent := shards.route.Parent(g.shard); parent != g.shard {
			shards = shards.split(parent)
		}
	}
	return shards, err
}

// awaitGroups waits until this node knows the groups of a read's token. To do that it asks the catalog's leader
// once, as all reads that wait at this time do together. A group that never was has no writes to wait for.
func (t *router) awaitGroups(opt *ReadOptions) error {
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	err := t.newest(ctx)
	if err == nil {
		next := t.catalog.View().NextGroup
		err = errs.WaitFor(ctx, func() error {
			for _, at := range opt.Token.At {
				if at.Group < next && !t.knowsGroup(at.Group) && !t.draining.Load() {
					return fmt.Errorf("%w: group %d", errs.ErrBehind, at.Group)
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("%w: a group of the token is not known here: %w", errs.ErrNoQuorum, err)
	}
	return nil
}

// knows reports whether this node knows the groups of a token.
func (t *router) knows(token Token) bool {
	return !slices.ContainsFunc(token.At, func(at GroupIndex) bool { return !t.knowsGroup(at.Group) })
}

// knowsGroup reports whether this node knows a group of a token, or that the group was dropped.
func (t *router) knowsGroup(group uint32) bool {
	return group == catalogGroup || t.registry.shardOf(group) != nil || t.catalog.View().Dropped(group)
}

// orUnknown does what orDropped does, for a call to one keyspace. It also returns an
// ErrUnknownKeyspace of another node, which may know of a drop that this node has not applied yet.
func (t *router) orUnknown(ks *Keyspace, err error) error {
	if errors.Is(err, errs.ErrUnknownKeyspace) {
		return errs.ErrUnknownKeyspace
	}
	return orDropped(t.catalog.View(), ks.FirstGroup, err)
}

// holders returns the keys of the nodes that should hold the group, by the catalog.
func (t *router) holders(number uint32) []string { return t.catalog.View().Groups[number].Target }

// alone reports whether the catalog has no other node.
func (t *router) alone() bool { return len(t.catalog.View().Nodes) < 2 }

// readers returns the other nodes that may answer a read. The leader comes first.
func (t *router) readers(g *shardReplica) []string {
	leader := g.leader()
	var nodes []string
	if leader != "" && leader != t.node {
		nodes = append(nodes, leader)
	}
	for _, node := range t.holders(g.number) {
		if node != leader && node != t.node {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// errNobodyHas is returned, together with ErrNoQuorum, for a stale read if no living node has a
// replica of the shard.
var errNobodyHas = errors.New("no living node has a replica of it")

// nobodyHas returns errNobodyHas for a stale read if this node has no replica of the shard, and all
// nodes that should hold the shard are dead. Otherwise it returns nil.
func (t *router) nobodyHas(g *shardReplica, opt *ReadOptions) error {
	if opt.Consistency != Stale || t.alive == nil || g.replica.Load() != nil {
		return nil
	}
	view := t.catalog.View()
	dead := []string{}
	for _, key := range t.readers(g) {
		if t.alive(key) {
			return nil
		}
		name := view.Nodes[key].Name
		if name == "" {
			name = key
		}
		dead = append(dead, name)
	}
	slices.Sort(dead)
	return fmt.Errorf("%w: shard %d of keyspace %s: %w (%s dead)", errs.ErrNoQuorum, g.shard, g.keyspace, errNobodyHas, strings.Join(dead, ", "))
}

// lost reports whether this node knows no leader of the group, or only one that does not answer.
func (t *router) lost(g *shardReplica) bool {
	leader := g.leader()
	return leader == "" || t.calls.Doubtful(leader)
}

// guess returns another node that should hold the group, or "". Successive calls return these
// nodes in turn.
func (t *router) guess(g *shardReplica) string {
	return t.nextHolder(g, func(node string) bool { return true })
}

// Two nodes that cannot reach each other may both reach a third node, which then relays parts of
// writes and reads. The relaying node calls the destination directly, so a call is relayed at most
// once.

// relayFor returns a node that can relay calls to a group's leader that this node cannot reach, or
// "". Successive calls return the holders of the group in turn.
func (t *router) relayFor(g *shardReplica, leader string) string {
	if g == nil || t.alive != nil && !t.alive(leader) {
		return ""
	}
	return t.nextHolder(g, func(node string) bool { return node != leader && !t.calls.Doubtful(node) })
}

// nextHolder returns the next of the group's other holders for which accept returns true, or "".
func (t *router) nextHolder(g *shardReplica, accept func(node string) bool) string {
	holders := t.holders(g.number)
	for range holders {
		if node := holders[int(g.guesses.Add(1))%len(holders)]; node != t.node && accept(node) {
			return node
		}
	}
	return ""
}

// relay calls a node on behalf of another node. If the call was not sent, the error promises that
// nothing was applied. If the answer was lost, the outcome is unknown.
func (t *router) relay(ctx context.Context, node, method string, request []byte) ([]byte, error) {
	answer, err := t.calls.Call(ctx, node, method, request)
	if errors.Is(err, rpc.ErrNotSent) {
		return nil, fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	return answer, err
}

// orDropped returns err, or ErrUnknownKeyspace in its place if view shows that the group's keyspace
// was dropped. Then err does not matter, because no row of a dropped group remains.
func orDropped(view *catalog.View, group uint32, err error) error {
	if err != nil && view.Dropped(group) {
		return errs.ErrUnknownKeyspace
	}
	return err
}
