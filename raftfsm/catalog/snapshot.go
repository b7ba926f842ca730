package catalog

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/codec"
)

// Snapshot captures the state between two commands.
func (c *Catalog) Snapshot() (raft.FSMSnapshot, error) {
	return snapshot{c.View()}, nil
}

type snapshot struct{ view *View }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	body := s.view.encoded()
	w := codec.NewStreamWriter(sink)
	if err := w.Head(codec.KindCatalog, codec.Head{Index: s.view.Applied, Route: codec.Whole}, -1); err != nil {
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

// Restore replaces the state by the state in a snapshot. On an error, the state stays unchanged.
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
	head, err := s.Head(codec.KindCatalog, codec.Whole)
	if err == nil && head != (codec.Head{Index: head.Index, Route: codec.Whole}) {
		err = fmt.Errorf("%w: a catalog of %+v", codec.ErrSnapshot, head)
	}
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
	view := &View{Applied: head.Index, changed: make(chan struct{})}
	if err := codec.DecodeJSON(body, view); err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	view.ownMaps()
	_, end, err := s.Next() // nothing but the end follows the section
	if err != nil {
		return nil, err
	}
	return view, s.End(end, func(codec.Totals) (codec.Totals, error) {
		return codec.Totals{Rows: uint64(len(view.Keyspaces)), Digest: view.Digest()}, nil
	})
}
