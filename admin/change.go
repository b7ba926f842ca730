package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
)

// operation is one change that an operator requested.
type operation struct {
	node    *shard.Node
	alive   func(key string) bool
	catalog *catalog.View // this node's copy when it got the request
}

func refusedf(format string, args ...any) error {
	return &catalog.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

func (o *operation) command(ctx context.Context, command *catalog.Command) error {
	result, err := o.node.Change(ctx, command)
	switch {
	case err != nil:
		return err
	case result.Missing:
		return ErrNoSuchNode
	case result.Refused != "":
		return refusedf("%s", result.Refused)
	}
	return nil
}

// find returns the node with the given name or key. If several nodes have that name, it prefers one
// that is not leaving. If all of them are leaving, it returns an error.
func (o *operation) find(called string) (catalog.Node, error) {
	if node, known := o.catalog.Nodes[called]; known {
		return node, nil
	}
	var found, leaving []catalog.Node
	for _, node := range o.catalog.Nodes {
		switch {
		case node.Name != called:
		case node.State == catalog.NodeLeaving:
			leaving = append(leaving, node)
		default:
			found = append(found, node)
		}
	}
	if found = append(found, leaving...); len(found) == 0 {
		return catalog.Node{}, ErrNoSuchNode
	}
	if len(leaving) == len(found) && len(leaving) > 1 {
		return catalog.Node{}, refusedf("%d nodes of the name %s are leaving; give the key of one", len(leaving), called)
	}
	return found[0], nil
}

// findIn does the same as find. If there is no such node, the error names the field of the request.
func (o *operation) findIn(field, called string) (catalog.Node, error) {
	node, err := o.find(called)
	if errors.Is(err, ErrNoSuchNode) {
		err = &errs.ArgumentError{Field: field, Problem: err.Error()}
	}
	return node, err
}

func (c NodeChange) make(ctx context.Context, o *operation) (*clientadmin.Changed, error) {
	node, err := o.find(c.Node)
	if err != nil {
		return nil, err
	}
	if node.State != c.State && c.State != catalog.NodeActive {
		if node.State == catalog.NodeLeaving {
			return nil, refusedf("%s is leaving; undrain it first", node.Name)
		}
		if !o.othersTake(node.Key) {
			return nil, refusedf("no other node is active and alive to take over from %s", node.Name)
		}
	}
	set := &catalog.SetNodeStateEntry{Key: node.Key, State: c.State}
	if err := o.command(ctx, &catalog.Command{SetNodeState: set}); err != nil {
		return nil, err
	}
	return &clientadmin.Changed{
		Changed: node.State != c.State,
		Node:    &clientadmin.ChangedNode{ID: node.Name, Key: node.Key, State: string(c.State)},
	}, nil
}

// othersTake reports whether any node except exceptKey can hold replicas and lead.
func (o *operation) othersTake(exceptKey string) bool {
	for key, node := range o.catalog.Nodes {
		if key != exceptKey && node.State == catalog.NodeActive && o.alive(key) {
			return true
		}
	}
	return false
}

// takes returns an error unless a node is active and alive. Any other node gets no replica and no
// leadership.
func (o *operation) takes(node catalog.Node) error {
	switch {
	case node.State != catalog.NodeActive:
		return refusedf("%s is %s", node.Name, node.State)
	case !o.alive(node.Key):
		return refusedf("%s is dead", node.Name)
	}
	return nil
}

// facts returns the leader's view of a group, and the keys of the nodes that are to have its
// replicas.
func (o *operation) facts(ctx context.Context, group uint32) (leadership.LeaderView, []string, error) {
	placement, placed := o.catalog.Groups[group]
	if !placed {
		return leadership.LeaderView{}, nil, ErrNoSuchGroup
	}
	facts, led := o.node.LeaderViews(ctx)[group]
	if !led {
		return facts, nil, errs.ErrNoLeader
	}
	return facts, placement.Target, nil
}

func (c TransferChange) make(ctx context.Context, o *operation) (*clientadmin.Changed, error) {
	facts, target, err := o.facts(ctx, c.Group)
	if err != nil {
		return nil, err
	}
	to, err := o.findIn("to", c.To)
	if err != nil {
		return nil, err
	}
	changed := o.changedGroup(c.Group, to.Key, target)
	if facts.Leader == to.Key {
		changed.Changed = false
		return changed, nil
	}
	if err := o.takes(to); err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains(facts.Voters, to.Key):
		return nil, refusedf("%s has no vote in group %d; %s have", to.Name, c.Group, strings.Join(Names(o.catalog).all(facts.Voters), ", "))
	case !slices.Contains(facts.CaughtUp, to.Key):
		return nil, refusedf("%s has not caught up with group %d", to.Name, c.Group)
	}
	if err := o.node.Transfer(ctx, c.Group, facts.Leader, to.Key); err != nil {
		if errors.Is(err, errs.ErrNoLeader) || errors.Is(err, errs.ErrDraining) || ctx.Err() != nil {
			return nil, err
		}
		return nil, refusedf("the handover did not take place: %v", err)
	}
	return changed, nil
}

func (o *operation) changedGroup(number uint32, leader string, target []string) *clientadmin.Changed {
	name := Names(o.catalog)
	return &clientadmin.Changed{Changed: true, Group: &clientadmin.ChangedGroup{ID: number, Leader: name[leader], Target: name.all(target)}}
}

func (c MoveChange) make(ctx context.Context, o *operation) (*clientadmin.Changed, error) {
	facts, target, err := o.facts(ctx, c.Group)
	if err != nil {
		return nil, err
	}
	from, err := o.findIn("from", c.From)
	if err != nil {
		return nil, err
	}
	to, err := o.findIn("to", c.To)
	if err != nil {
		return nil, err
	}
	at := slices.Index(target, from.Key)
	switch there := slices.Contains(target, to.Key); {
	case at < 0 && there:
		changed := o.changedGroup(c.Group, facts.Leader, target)
		changed.Changed = false
		return changed, nil
	case at < 0:
		return nil, refusedf("group %d is not to be on %s", c.Group, from.Name)
	case there:
		return nil, refusedf("group %d is to be on %s already", c.Group, to.Name)
	}
	if err := o.takes(to); err != nil {
		return nil, err
	}
	// A replica that has not joined yet may move to another node: it has no vote, and its node
	// may be dead.
	joins := !slices.Contains(facts.Voters, from.Key)
	if !joins && !slices.Equal(slices.Sorted(slices.Values(facts.Voters)), slices.Sorted(slices.Values(target))) {
		return nil, refusedf("the members of group %d are being changed; wait until its voters are its target", c.Group)
	}
	next := slices.Clone(target)
	next[at] = to.Key
	if err := o.command(ctx, &catalog.Command{Place: &catalog.PlaceEntry{Group: c.Group, Was: target, Target: next}}); err != nil {
		return nil, err
	}
	return o.changedGroup(c.Group, facts.Leader, next), nil
}

func (c HoldChange) make(ctx context.Context, o *operation) (*clientadmin.Changed, error) {
	if err := o.command(ctx, &catalog.Command{HoldVersion: &catalog.HoldVersionEntry{Held: c.Held}}); err != nil {
		return nil, err
	}
	return o.changedVersion(), nil
}

func (FinalizeChange) make(ctx context.Context, o *operation) (*clientadmin.Changed, error) {
	if _, err := (HoldChange{}).make(ctx, o); err != nil {
		return nil, err
	}
	for {
		now := o.node.Catalog()
		if now.ClusterVersion >= now.VersionMax() {
			return o.changedVersion(), nil
		}
		next := &catalog.SetVersionEntry{Version: now.ClusterVersion + 1}
		if err := o.command(ctx, &catalog.Command{SetVersion: next}); err != nil {
			return nil, err
		}
	}
}

func (o *operation) changedVersion() *clientadmin.Changed {
	is, was := versionOf(o.node.Catalog()), versionOf(o.catalog)
	return &clientadmin.Changed{Changed: is.Version != was.Version || is.Held != was.Held, Version: &is}
}
