package catalog

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

// Snapshot returns the catalog between two commands.
func (c *Catalog) Snapshot() (raft.FSMSnapshot, error) {
	return snapshot{c.View()}, nil
}

type snapshot struct{ view *View }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	body := s.view.encoded()
	w := codec.NewStreamWriter(sink)
	if err := w.Head(codec.KindCatalog, codec.Route{Modulus: 1}, s.view.Applied, -1); err != nil {
		return err
	}
	if err := w.Section(codec.StreamCatalog, func(b []byte) []byte { return append(b, body...) }); err != nil {
		return err
	}
	if err := w.End(uint64(len(s.view.Keyspaces)), s.view.Digest()); err != nil {
		return err
	}
	return sink.Close()
}

func (snapshot) Release() {}

// Restore replaces the catalog by a snapshot's. On an error the catalog stays as it
// was.
func (c *Catalog) Restore(snapshot io.ReadCloser) error {
	defer snapshot.Close()
	next, err := readCatalog(snapshot)
	if err != nil {
		return fmt.Errorf("cannot restore catalog: %w", err)
	}
	c.replace(c.View(), next)
	return nil
}

func readCatalog(r io.Reader) (*View, error) {
	s := codec.NewStreamReader(r)
	index, err := s.Head(codec.KindCatalog, codec.Route{Modulus: 1})
	if err != nil {
		return nil, err
	}
	kind, body, err := s.Next()
	if err != nil {
		return nil, err
	}
	if kind != codec.StreamCatalog {
		return nil, fmt.Errorf("%w: section kind %d", codec.ErrSnapshot, kind)
	}
	view := &View{Applied: index, changed: make(chan struct{})}
	if err := codec.DecodeJSON(body, view); err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	view.ownMaps()
	if err := view.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	kind, end, err := s.Next()
	if err != nil {
		return nil, err
	}
	if kind != codec.StreamEnd {
		return nil, fmt.Errorf("%w: section kind %d", codec.ErrSnapshot, kind)
	}
	return view, s.End(end, uint64(len(view.Keyspaces)), view.Digest())
}

// check returns an error for a state that no commands produce.
func (v *View) check() error {
	if v.NextGroup <= Group {
		return fmt.Errorf("next group %d", v.NextGroup)
	}
	if v.ClusterVersion < firstClusterVersion || v.ClusterVersion > v.VersionMax() {
		return fmt.Errorf("cluster version %d of nodes that speak %d", v.ClusterVersion, v.VersionMax())
	}
	if err := v.checkNodes(); err != nil {
		return err
	}
	if err := v.checkSources(); err != nil {
		return err
	}
	if err := v.checkUsers(); err != nil {
		return err
	}
	return v.checkGroups()
}

// checkNodes refuses a node under another node's key, and two active nodes of one name.
func (v *View) checkNodes() error {
	if len(v.Nodes) > NodesMax {
		return fmt.Errorf("%d nodes", len(v.Nodes))
	}
	for key, node := range v.Nodes {
		if node.Key != key {
			return fmt.Errorf("node %q stands under %q", node.Key, key)
		}
		if err := node.check(); err != nil {
			return err
		}
		if other := v.holderOf(&node); other != "" {
			return fmt.Errorf("nodes %q and %q have one name", key, other)
		}
	}
	return nil
}

// checkGroups refuses keyspaces under another name or without shards, groups that two
// keyspaces share or that NextGroup would reuse, and groups without a placement or a
// keyspace.
func (v *View) checkGroups() error {
	keyspaces := slices.SortedFunc(maps.Values(v.Keyspaces), func(a, b Keyspace) int {
		return cmp.Compare(a.FirstGroup, b.FirstGroup)
	})
	groups, next := 0, uint64(Group+1)
	for _, k := range keyspaces {
		first := uint64(k.FirstGroup)
		if k.Name == "" || v.Keyspaces[k.Name].FirstGroup != k.FirstGroup || k.Shards < 1 || first < next || len(k.Columns) > engine.ColumnsMax {
			return fmt.Errorf("keyspace %q: %+v", k.Name, k)
		}
		for next = first; next < first+uint64(k.Shards); next++ {
			if _, placed := v.Groups[uint32(next)]; !placed || next >= uint64(v.NextGroup) {
				return fmt.Errorf("group %d of keyspace %q has no place", next, k.Name)
			}
		}
		if k.Everywhere && k.Kind == codec.KindBoard.String() {
			return fmt.Errorf("keyspace %q, of kind %s, is everywhere by itself", k.Name, k.Kind)
		}
		if err := k.checkFloors(); err != nil {
			return fmt.Errorf("keyspace %q: %w", k.Name, err)
		}
		if len(k.Names()) == 0 && len(k.Columns) > 0 {
			return fmt.Errorf("keyspace %q has dropped all its columns, %d", k.Name, len(k.Columns))
		}
		groups += k.Shards
	}
	if _, placed := v.Groups[Group]; placed {
		groups++
	}
	if groups != len(v.Groups) {
		return fmt.Errorf("%d groups are placed, %d are there", len(v.Groups), groups)
	}
	return v.checkPlaces()
}

func (v *View) checkPlaces() error {
	for g, p := range v.Groups {
		if len(p.Initial) < 1 || len(p.Initial) > ReplicasMax {
			return fmt.Errorf("group %d began with %d replicas", g, len(p.Initial))
		}
		if err := v.checkReplicas(p.Target); err != nil {
			return fmt.Errorf("group %d: %w", g, err)
		}
		if err := v.checkReplicaNumbers(g); err != nil {
			return err
		}
	}
	return nil
}
