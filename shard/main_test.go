package shard_test

import (
	"context"
	"io"
	"testing"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/sources"
)

func TestMain(m *testing.M) {
	shard.SourcesOf = func(n *shard.Node) shard.Sources {
		s := sources.NewSink(n)
		return struct {
			*sources.Sink
			*sources.Changes
		}{s, sources.NewChanges(s, n)}
	}
	shard.ErrUnknownSource, shard.ErrSourceExists, shard.ErrNotPaused = sources.ErrUnknownSource, sources.ErrSourceExists, sources.ErrNotPaused //nolint:reassign // they are declared to be set here
	shard.RestoreShard = func(ctx context.Context, n shard.RestoreNode, group uint32, stream io.Reader, force bool, columns []string) (raftfsm.SnapshotFacts, error) {
		return admin.RestoreShard(ctx, n, group, stream, admin.RestoreOptions{Force: force, Columns: columns})
	}
	shard.ErrNotEmpty, shard.ErrBadSnapshot, shard.ErrRestoredOther = admin.ErrShardNotEmpty, admin.ErrBadSnapshot, admin.ErrRestoredOther //nolint:reassign // as above
	m.Run()
}
