package shard

import (
	"context"
	"encoding/json"
	"io"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source/sink"
)

// Tests of this package also use packages that import it. The external tests set these variables,
// because only they can import such packages.
var (
	// SourcesOf returns a node's sink of sources, with an empty cache.
	SourcesOf func(*Node) Sources

	ErrUnknownSource, ErrSourceExists, ErrNotPaused error

	// RestoreShard is admin.RestoreShard.
	RestoreShard func(ctx context.Context, n RestoreNode, group uint32, stream io.Reader, force bool, columns []string) (raftfsm.SnapshotFacts, error)

	ErrNotEmpty, ErrBadSnapshot, ErrRestoredOther error
)

// RestoreNode is admin.RestoreNode.
type RestoreNode interface {
	ShardOf(group uint32) (*Keyspace, int, error)
	Keyspace(name string) *Keyspace
	Write(ks *Keyspace, w *Write) error
	Read(ks *Keyspace, q raftfsm.Query, ids []uint64, opt *ReadOptions) error
	Reports(ctx context.Context) map[string]NodeReport
	Catalog() *catalog.View
	CatchUp(ctx context.Context) error
	Stopping() bool
}

// Sources has the methods of sources.Sink and sources.Changes.
type Sources interface {
	sink.Sink
	CreateSource(ctx context.Context, name string, config json.RawMessage, paused bool) (catalog.Source, error)
	Source(name string) (catalog.Source, error)
	SetPaused(ctx context.Context, s catalog.Source, paused, changing bool) (catalog.Source, error)
	SettleSource(ctx context.Context, s catalog.Source) (map[uint32]sink.Position, error)
	SetMeaning(ctx context.Context, s catalog.Source, config json.RawMessage, settled map[uint32]sink.Position, paused bool) (catalog.Source, error)
	SeekSource(ctx context.Context, s catalog.Source, to map[uint32]sink.Position) (catalog.Source, error)
	DeleteSource(ctx context.Context, s catalog.Source) error
	SourcePositions(ctx context.Context, source uint64, partition uint32, keyspaces ...string) ([]sink.ShardPosition, error)
}
