package shard

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/shard/storage"
)

func TestNodeKeepsItsLogStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(store storage.LogStore) error {
		n, err := Open(Config{
			Dir: dir, NodeKey: "n1", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("0", 32), Version: "test", ClusterAddr: "127.0.0.1:0",
			Shards: fewShards(map[string]int{"posts": 1, "users": 1}), LogStore: store,
			Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Fatal: func(err error) { t.Error(err) },
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		return errors.Join(n.WaitReady(ctx), n.Close(ctx))
	}
	for _, store := range []storage.LogStore{storage.LogStoreShared, "", storage.LogStoreShared} {
		mustDo(t, open(store))
	}
	if err := open(storage.LogStoreBoltDB); !errors.Is(err, storage.ErrOtherLogStore) {
		t.Errorf("opened with %v", err)
	}
	if logs, err := filepath.Glob(filepath.Join(dir, "*", "raft.db")); err != nil || len(logs) > 0 {
		t.Errorf("logs of groups: %v, %v", logs, err)
	}
}
