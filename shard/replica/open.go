package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/shard/storage"
)

// Open opens this node's replica of a group, or creates a new one. It returns as soon as the state
// is restored from the newest snapshot. The replica applies later entries once a leader announces
// the commit index. If the replica is damaged, Open returns ErrDamaged and changes nothing: the
// operator must wipe the node, which then joins under a new node id.
func Open(cfg Config) (*Replica, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot open group %d: %w", cfg.Group, err)
	}
	if err := makeGroupDir(cfg.Dir); err != nil {
		return nil, fmt.Errorf("cannot open group %d: %w", cfg.Group, err)
	}
	stores, err := storage.OpenStores(cfg.Stores())
	if err != nil {
		return nil, fmt.Errorf("cannot open group %d: %w", cfg.Group, err)
	}
	g, err := startGroup(cfg, stores)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open group %d: %w", cfg.Group, err), stores.Close())
	}
	g.stores = stores
	return g, nil
}

// makeGroupDir creates dir and makes its name durable. The name of its parent must be durable
// already.
func makeGroupDir(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	// Sync even if dir existed, because the process that created dir may have been killed before
	// it synced the name.
	return program.SyncDir(filepath.Dir(filepath.Clean(dir)))
}

// startGroup starts raft over the stores. If it fails, the caller must close the stores.
func startGroup(cfg Config, stores storage.Stores) (*Replica, error) {
	path := cfg.LogPath()
	logger := cfg.raftLogger()
	g := &Replica{
		cfg:        cfg,
		leadership: make(chan bool, 1),
		done:       make(chan struct{}),
		closed:     make(chan struct{}),
	}
	g.stop = storage.NewFailStop(cfg.Fatal, func(err error) {
		cfg.Mux.Limited().Warn("a write or a snapshot waits for disk or file descriptors", "group", cfg.Group, "err", err)
		if g.ends.Load() { // do not wait: pending proposals get their answers only after this write
			g.interrupt()
		}
	})
	g.log = storage.NewLog(stores, cfg.Group, path, cfg.SnapshotBytes, g.stop)
	stable := storage.NewVotes(stores, cfg.Group, path, g.stop)
	var err error
	if g.snaps, err = storage.OpenSnapshots(cfg.Dir, cfg.Group, logger, g.stop); err != nil {
		return nil, err
	}
	if err := program.SyncDir(cfg.Dir); err != nil { // makes the names of log and snapshots durable
		return nil, err
	}
	if err := storage.Recover(g.log, g.snaps, stable); err != nil {
		return nil, err
	}
	if err := g.bootstrap(stable); err != nil {
		return nil, err
	}
	if cfg.Begun != nil {
		if err := cfg.Begun(); err != nil {
			return nil, err
		}
	}
	layer, err := cfg.Mux.Layer(cfg.Group, cfg.ID())
	if err != nil {
		return nil, err
	}
	g.trans = newRaftTransport(layer, cfg.Addrs, cfg.Timing.Heartbeat, logger)
	g.members.stored = g.snaps
	g.snapshotter = Snapshotter{
		cfg: &g.cfg, settings: &g.settings, log: g.log, stored: g.snaps, stop: g.stop, trans: g.trans, ready: g.Ready, closing: g.Closing, done: g.done,
		openStored: g.snaps.Open, running: semaphore.NewWeighted(1), grew: make(chan struct{}, 1),
	}
	g.Growth.of = g
	if cfg.Cold != nil || cfg.Members != nil {
		g.trans.carry = g.snapshotter.carry
	}
	g.trans.muted = &g.muted
	g.trans.streams, g.trans.beats, g.trans.group = cfg.Streams, cfg.Beats, cfg.Group
	if err := g.start(stable, logger); err != nil {
		return nil, errors.Join(err, g.trans.Close())
	}
	g.snapshotter.sweepCold()
	g.snapshotter.trimMembers()
	return g, nil
}

// bootstrap writes the first configuration into an empty replica. A crash may leave the term on
// disk without the entry. So a replica whose log has no entry counts as empty until an election
// has raised its term.
func (g *Replica) bootstrap(stable *storage.Votes) error {
	last, err := g.log.LastIndex()
	if err != nil || len(g.cfg.Initial) == 0 || last > 0 || g.snaps.NewestIndex() > 0 {
		return err
	}
	term, err := stable.Term()
	if err != nil || term > 1 {
		return err
	}
	if err := stable.SetTerm(1); err != nil {
		return err
	}
	var first raft.Configuration
	for _, m := range g.cfg.Initial {
		first.Servers = append(first.Servers, raft.Server{
			Suffrage: raft.Voter, ID: m.ID, Address: raft.ServerAddress(m.Addr),
		})
	}
	g.first = g.cfg.Initial[0].ID == g.ID()
	return g.log.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(first)})
}

// start starts raft and the group's goroutines. After an error no goroutine runs.
func (g *Replica) start(stable *storage.Votes, logger *raftLogger) error {
	conf := g.cfg.raftConfig(g.leadership, logger)
	cache := newLogCache(g.log)
	log := storage.NewEndingLog(cache, g.stop)
	g.trans.filter = newRPCFilter(g, cache)
	g.log.Unstored = g.unstored
	if g.cfg.Streams != nil { // register before raft restores a snapshot, so that calls wait until the restore ends
		g.trans.filter.served = g.cfg.Streams.Open(g.cfg.Group, g.ID())
	}
	if g.first {
		g.trans.beginsUntil = time.Now().Add(beginMax)
	}
	fsm := watchedFSM{BatchingFSM: g.cfg.FSM, group: g.cfg.Group, stop: g.stop, entries: &g.entries, members: &g.members, applies: &g.applying, damaged: g.snapshotter.noteUnreadable, refused: g.snapshotter.noteRefused, turns: g.cfg.Turns, closing: g.Closing}

	// NewRaft runs in its own goroutine, because the stores may end the goroutine that calls them
	// (see storage.NewEndingLog).
	var err error
	started := make(chan struct{})
	go func() {
		defer close(started)
		g.raft, err = raft.NewRaft(conf, fsm, log, storage.NewEndingVotes(stable, g.stop), g.snaps, g.trans)
	}()
	<-started
	g.settings.raft, g.snapshotter.raft = g.raft, g.raft
	g.trans.filter.raft.Store(g.raft)
	if failure := g.stop.Failure(); failure != nil {
		err = failure // more precise than raft's own error
	}
	if g.raft == nil {
		if g.trans.filter.served != nil {
			g.trans.filter.served.Close()
		}
		return err
	}
	if err == nil && (g.first || g.SoleVoter()) {
		err = g.campaign()
	}
	g.wg.Go(g.trans.filter.run)
	g.wg.Go(g.watchLeadership)
	g.wg.Go(g.snapshotter.run)
	g.wg.Go(func() {
		storage.WatchStalls(g.cfg.DiskStallMax, g.log, stable, &g.applying, g.stop, g.noteHang, g.done)
		<-g.done // noteHang unmutes the transport; after a failure it must stay muted until raft has stopped
		g.noteHang(storage.Hang{}, storage.Hang{})
	})
	if err == nil {
		err = g.stop.Arm()
	}
	if err != nil {
		err = errors.Join(err, g.raft.Shutdown().Error())
		close(g.done)
		g.wg.Wait()
	}
	return err
}
