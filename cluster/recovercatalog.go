package cluster

import (
	"fmt"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/shard/replica"
)

// This file makes the commands that a recovery appends to the logs of the catalog and of names.
// DESIGN.md, C3a and C6, says why.

const (
	// groupsSkipped is how many numbers of groups a recovered catalog never gives. The lost nodes
	// may have given so many after the last entry that the survivors have.
	groupsSkipped = 64
	// epochsRaisedMax bounds the commands that raise the epochs of a source. Each operator's pause
	// or seek needs one.
	epochsRaisedMax = 1000
	// namesSkipped is how many numbers of texts a recovered names group never gives.
	// raftfsm/names/DESIGN.md says why so many.
	namesSkipped = 1 << 28
)

// commands returns the entries that the recovery appends to the log of a group.
func (s *Survivors) commands(plan *Recovery, group uint32) ([][]byte, error) {
	if group == catalog.Group {
		return s.catalogCommands(plan)
	}
	for _, k := range s.view.Keyspaces {
		if k.Kind == (names.Kind{}).Number().String() && k.FirstGroup() == group {
			return [][]byte{names.SkipEntry(namesSkipped)}, nil
		}
	}
	return nil, nil
}

// passing is commands with the catalog after them.
type passing struct {
	view    *catalog.View
	entries [][]byte
	err     error
}

// add appends a command unless the catalog refuses it. It reports whether it did.
func (c *passing) add(command *catalog.Command) bool {
	next, result := c.view.After(command)
	if result.Refused != "" || result.Missing || c.err != nil {
		return false
	}
	var entry []byte
	if entry, c.err = catalog.AppendEntry(nil, command); c.err != nil {
		return false
	}
	c.view, c.entries = next, append(c.entries, entry)
	return true
}

// catalogCommands returns the entries by which the catalog passes the numbers that shards show, and forgets
// the lost nodes. It leaves out what the catalog would refuse, which are changes of a shard that is
// being split. After the split, the catalog's leader makes these changes as usual.
func (s *Survivors) catalogCommands(plan *Recovery) ([][]byte, error) {
	c := &passing{view: s.view}
	if err := s.passShown(c, plan); err != nil {
		return nil, err
	}
	for _, key := range plan.Lost {
		c.add(&catalog.Command{SetNodeState: &catalog.SetNodeStateEntry{Key: key, State: catalog.NodeLeaving}})
	}
	for _, g := range plan.Groups {
		was := c.view.Groups[g.Group].Target
		target := slices.DeleteFunc(slices.Clone(was), func(key string) bool {
			return !slices.Contains(plan.Nodes, key) || slices.Contains(g.Damaged, key) || key == g.Node
		})
		switch {
		case g.Node == "":
			target = []string{plan.Groups[0].Node} // the group has no leader, so nothing comes of it but that the lost nodes can leave
		case !g.Kept || len(target) < len(was):
			target = append([]string{g.Node}, target...)
		}
		c.add(&catalog.Command{Place: &catalog.PlaceEntry{Group: g.Group, Target: target[:min(len(target), catalog.ReplicasMax)], Was: was}})
	}
	for _, key := range plan.Lost {
		c.add(&catalog.Command{RemoveNode: &catalog.RemoveNodeEntry{Key: key}})
	}
	return c.entries, c.err
}

// passShown raises the numbers of the catalog above all that the replicas show. It returns
// ErrCannotRecover if a shard shows what only a lost catalog can explain.
func (s *Survivors) passShown(c *passing, plan *Recovery) error {
	next := c.view.NextGroup
	most := uint64(0)
	for _, k := range c.view.KeyspacesByName() {
		columns := len(k.Columns)
		for shard, group := range k.All() {
			for _, n := range s.nodes {
				r := n.replicas[group]
				if r == nil {
					continue
				}
				shown, err := r.Shown(k.Kind)
				if err != nil {
					return fmt.Errorf("%q: %s/%d: %w", n.path, k.Name, shard, err)
				}
				if shown.Split >= uint64(next) {
					return fmt.Errorf("%w: %s/%d was split in %q, and no catalog here knows into what; leave it out", ErrCannotRecover, k.Name, shard, n.path)
				}
				columns, most = max(columns, shown.Columns), max(most, shown.Attempt)
				if err := passEpochs(c, &shown, n.path); err != nil {
					return err
				}
			}
		}
		if err := passColumns(c, &k, columns); err != nil {
			return err
		}
	}
	return passGroups(c, plan.Groups[0].Node, most)
}

// passColumns gives names to the columns of a keyspace that only its shards show, so that their
// counts can be read.
func passColumns(c *passing, k *catalog.Keyspace, columns int) error {
	for number := len(k.Columns); number < columns; number++ {
		add := &catalog.AddColumnsEntry{Keyspace: k.Name, Columns: []string{fmt.Sprintf("recovered_%d", number)}}
		if !c.add(&catalog.Command{AddColumns: add}) || len(c.view.Keyspaces[k.Name].Columns) != number+1 {
			return fmt.Errorf("%w: shards of %s have %d columns, and the catalog, which has %d, takes none of the name %s", ErrCannotRecover, k.Name, columns, number, add.Columns[0])
		}
	}
	return nil
}

// passEpochs raises the epochs of sources above those of a shard, as pauses do. The shard's
// positions stay valid.
func passEpochs(c *passing, shown *replica.Shown, path string) error {
	for of, epoch := range shown.Epochs {
		s, exists := c.view.Source(of.Source)
		p, begun := s.Partitions[of.Partition]
		if !exists || epoch <= p.Epoch || !begun && epoch <= 1 {
			continue
		}
		if !begun || epoch-p.Epoch > epochsRaisedMax {
			return fmt.Errorf("%w: source %s has epoch %d of partition %d in %q, and epoch %d in the newest catalog; leave it out", ErrCannotRecover, s.Name, epoch, of.Partition, path, p.Epoch)
		}
		for p.Epoch <= epoch {
			for _, paused := range []bool{!s.Paused, s.Paused} {
				version := c.view.Sources[s.Name].Version
				c.add(&catalog.Command{PauseSource: &catalog.PauseSourceEntry{Name: s.Name, Version: version, Paused: paused, Changing: s.Changing}})
			}
			was := p.Epoch
			if p = c.view.Sources[s.Name].Partitions[of.Partition]; p.Epoch == was {
				return fmt.Errorf("%w: the catalog does not raise the epochs of source %s", ErrCannotRecover, s.Name)
			}
		}
	}
	return nil
}

// passGroups creates and drops a keyspace, so that no later group or attempt to split a shard has a
// number that was given before.
func passGroups(c *passing, node string, attempt uint64) error {
	behind := max(0, int64(attempt)-int64(c.view.NextGroup)+1)
	if behind > catalog.GroupsMax {
		return fmt.Errorf("%w: the shards are %d groups ahead of the newest catalog", ErrCannotRecover, behind)
	}
	for _, n := range []int64{behind + groupsSkipped, behind} {
		k := catalog.Keyspace{Name: "recovery", Kind: "counters", Divisor: int(n), Columns: []string{"none"}}
		for _, taken := c.view.Keyspaces[k.Name]; taken; _, taken = c.view.Keyspaces[k.Name] {
			k.Name += "-"
		}
		create := &catalog.CreateEntry{Keyspace: k, Replicas: slices.Repeat([][]string{{node}}, int(n))}
		if n == 0 {
			return nil
		}
		if c.add(&catalog.Command{Create: create}) {
			made := c.view.Keyspaces[k.Name]
			c.add(&catalog.Command{Drop: &catalog.DropEntry{Keyspace: k.Name, FirstGroup: made.FirstGroup()}})
			return nil
		}
	}
	return fmt.Errorf("%w: the shards are %d groups ahead of the newest catalog, which has no room for so many", ErrCannotRecover, behind)
}
