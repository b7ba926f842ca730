package shard

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotRetryDelay is the pause before a snapshot that raft put off is tried
// again.
const snapshotRetryDelay = time.Second

// snapshot writes a snapshot of what is applied and cuts the log before it.
// raft may put it off, with an error, while the configuration changes.
func (g *group) snapshot() error {
	g.snapshotting.Lock()
	defer g.snapshotting.Unlock()
	bytes, entries := g.log.bytes.Load(), g.log.entries.Load()
	if err := g.setTrailing(bytes, entries); err != nil {
		return err
	}
	err := g.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot take a snapshot: %w", err)
	}
	g.log.bytes.Add(-bytes)
	g.log.entries.Add(-entries)
	return nil
}

// setTrailing makes the next snapshot leave about SnapshotBytes of entries in
// the log, judged by the size of those since the last one.
func (g *group) setTrailing(bytes, entries int64) error {
	trailing := int64(trailingEntriesMax)
	if bytes > 0 && entries > 0 {
		trailing = g.cfg.SnapshotBytes / max(1, bytes/entries)
	}
	conf := g.raft.ReloadableConfig()
	conf.TrailingLogs = uint64(min(max(trailing, trailingEntriesMin), trailingEntriesMax))
	if err := g.raft.ReloadConfig(conf); err != nil {
		return fmt.Errorf("cannot set the entries to keep: %w", err)
	}
	return nil
}

// runSnapshots takes a snapshot whenever the log since the last one has grown
// to SnapshotBytes.
func (g *group) runSnapshots() {
	for {
		select {
		case <-g.log.due:
		case <-g.done:
			return
		}
		for g.log.bytes.Load() >= g.cfg.SnapshotBytes && g.stop.failure() == nil {
			err := g.snapshot()
			if err == nil {
				continue
			}
			g.cfg.Logger.Info("a snapshot was put off", "group", g.cfg.Group, "err", err)
			select {
			case <-time.After(snapshotRetryDelay):
			case <-g.done:
				return
			}
		}
	}
}

// worthSnapshot reports whether replaying the log since the last snapshot
// would take longer than a restart should.
func (g *group) worthSnapshot() bool {
	return g.log.bytes.Load() >= g.cfg.SnapshotBytes/4
}
