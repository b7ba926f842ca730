package replica

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/storage"
)

// ErrDamaged is returned by Offline.Open for a replica whose bytes on disk differ from those written.
var ErrDamaged = storage.ErrDamaged

// Offline is the replicas of a stopped node, for the recovery after a lost majority
// (cluster/DESIGN.md). It runs no raft, votes for nobody and applies nothing.
type Offline struct {
	node  string
	dirs  Dirs
	store storage.LogStore
	waits func(error)
}

// OpenOffline opens the replicas below dir, the groups' directory of the node with this key. The
// caller must hold the lock of the data directory. waits is called when a write waits for disk or
// file descriptors; nil for no call.
func OpenOffline(dir, node string, waits func(error)) (*Offline, error) {
	if waits == nil {
		waits = func(error) {}
	}
	o := &Offline{node: node, dirs: Dirs{Path: dir}, waits: waits}
	if err := o.dirs.Load(); err != nil {
		return nil, fmt.Errorf("cannot read the groups: %w", err)
	}
	var err error
	if o.store, err = storage.ChooseLogStore(dir, ""); err != nil {
		return nil, err
	}
	if o.store == storage.LogStoreShared {
		if o.dirs.Log, err = storage.OpenNodeLog(dir); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// Close closes the node's log.
func (o *Offline) Close() error {
	if o.dirs.Log == nil {
		return nil
	}
	return o.dirs.Log.Close()
}

// Groups returns the groups that have a replica on the node, ascending.
func (o *Offline) Groups() []uint32 { return slices.Sorted(maps.Keys(o.dirs.mu.here)) }

// Number returns the number of the node's replica of a group, and whether it has one.
func (o *Offline) Number(group uint32) (uint64, bool) { return o.dirs.Number(group) }

// MayBegin reports whether the node may begin a replica of a group with this number, or has its
// directory. It may not if it has another replica, or has deleted the one with this number.
func (o *Offline) MayBegin(group uint32, number uint64) bool {
	if here, has := o.dirs.Number(group); has {
		return here == number
	}
	may, _ := o.dirs.MayBegin(group, number)
	return may
}

// Open opens the node's replica of a group. It returns nil if the node has none, or one that has
// stored nothing yet.
func (o *Offline) Open(group uint32) (*OfflineReplica, error) {
	number, has := o.dirs.Number(group)
	if !has {
		return nil, nil
	}
	cfg := Config{Dir: o.dirs.Dir(group, number), Group: group, NodeID: o.node, Replica: number, LogStore: o.store, NodeLog: o.dirs.Log}
	blank, err := isBlank(&cfg)
	if err != nil || blank {
		return nil, err
	}
	stores, err := storage.OpenStores(cfg.Stores())
	if err != nil {
		return nil, fmt.Errorf("cannot open group %d: %w", group, err)
	}
	r := &OfflineReplica{ID: cfg.ID(), Number: number, stores: stores}
	if err = r.open(&cfg, o.waits); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open group %d: %w", group, err), stores.Close())
	}
	if r.LastIndex == 0 {
		return nil, stores.Close()
	}
	return r, nil
}

// SetAside durably makes the next start of the node delete its replica of a group, which must not be
// open. The node never begins a replica with that number again.
func (o *Offline) SetAside(group uint32) error {
	number, has := o.dirs.Number(group)
	if !has {
		return nil
	}
	if err := o.dirs.MoveAside(group, number); err != nil {
		return err
	}
	return program.SyncDir(o.dirs.Path)
}

// OfflineReplica is the log, the term and the snapshot of one replica of a stopped node.
type OfflineReplica struct {
	ID       raft.ServerID
	Number   uint64
	Term     uint64 // the stored term, never below LastTerm
	LastTerm uint64 // term of the last entry
	// LastIndex is the index of the last entry. SnapshotIndex and all earlier entries are committed; later
	// ones may be.
	LastIndex, SnapshotIndex uint64
	// Written is when a leader appended the newest entry that has a time; zero if none has.
	Written time.Time
	// Configurations holds the newest configuration, and before it the previous one. raft can return
	// to no earlier one.
	Configurations []raft.Configuration

	stores storage.Stores
	log    *storage.Log
	votes  *storage.Votes
	snaps  *storage.Snapshots
}

func (r *OfflineReplica) open(cfg *Config, waits func(error)) error {
	stop := storage.NewFailStop(func(error) {}, waits)
	r.log = storage.NewLog(r.stores, cfg.Group, cfg.LogPath(), snapshotBytesDefault, stop)
	r.votes = storage.NewVotes(r.stores, cfg.Group, cfg.LogPath(), stop)
	var err error
	if r.snaps, err = storage.OpenSnapshots(cfg.Dir, cfg.Group, hclog.NewNullLogger(), stop); err != nil {
		return err
	}
	if err := storage.Recover(r.log, r.snaps, r.votes); err != nil {
		return err
	}
	metas, err := r.snaps.List()
	if err != nil {
		return err
	}
	if len(metas) > 0 {
		r.SnapshotIndex, r.LastIndex, r.LastTerm = metas[0].Index, metas[0].Index, metas[0].Term
		r.Configurations = []raft.Configuration{metas[0].Configuration}
		_, state, err := r.snaps.Open(metas[0].ID) // verifies the whole file
		if err != nil {
			return err
		}
		if err := state.Close(); err != nil {
			return err
		}
	}
	if r.Term, err = r.votes.Term(); err != nil {
		return err
	}
	return r.each(func(entry *raft.Log) error {
		r.LastIndex, r.LastTerm = entry.Index, entry.Term
		if !entry.AppendedAt.IsZero() {
			r.Written = entry.AppendedAt
		}
		if entry.Type == raft.LogConfiguration {
			r.Configurations = append(r.Configurations, raft.DecodeConfiguration(entry.Data))
			r.Configurations = r.Configurations[max(0, len(r.Configurations)-2):]
		}
		return nil
	})
}

// each calls visit for the entries after the snapshot.
func (r *OfflineReplica) each(visit func(*raft.Log) error) error {
	last, err := r.log.LastIndex()
	for index := r.SnapshotIndex + 1; err == nil && index <= last; index++ {
		entry := &raft.Log{}
		if err = r.log.GetLog(index, entry); err == nil {
			err = visit(entry)
		}
	}
	return err
}

// Close closes the replica's stores.
func (r *OfflineReplica) Close() error { return r.stores.Close() }

// NewerThan reports whether the last entry of r is of a later term than that of other, or of the
// same term and later.
func (r *OfflineReplica) NewerThan(other *OfflineReplica) bool {
	return r.LastTerm > other.LastTerm || r.LastTerm == other.LastTerm && r.LastIndex > other.LastIndex
}

// HasSoleVoter reports whether a MakeSoleVoter in this term is complete.
func (r *OfflineReplica) HasSoleVoter(term uint64) bool {
	servers := r.Newest().Servers
	return r.LastTerm >= term && len(servers) == 1 && SuffrageOf(servers, r.ID) == raft.Voter
}

// Newest returns the newest configuration, committed or not.
func (r *OfflineReplica) Newest() raft.Configuration {
	if len(r.Configurations) == 0 {
		return raft.Configuration{}
	}
	return r.Configurations[len(r.Configurations)-1]
}

// Catalog returns the catalog after all entries of the log, committed or not. r must be a replica of
// the catalog.
func (r *OfflineReplica) Catalog() (*catalog.View, error) {
	c := catalog.New()
	metas, err := r.snaps.List()
	if err == nil && len(metas) > 0 {
		_, state, openErr := r.snaps.Open(metas[0].ID)
		if err = openErr; err == nil {
			err = c.Restore(state)
		}
	}
	if err == nil {
		err = r.each(func(entry *raft.Log) error {
			c.ApplyBatch([]*raft.Log{entry})
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the catalog: %w", err)
	}
	return c.View(), nil
}

// Shown is what a replica shows of the catalog's numbers.
type Shown = kinds.Shown

// Shown returns what the snapshot and all entries of the log show, committed or not. r must be a
// replica of a shard of the kind.
func (r *OfflineReplica) Shown(kind string) (shown Shown, err error) {
	number, _ := codec.KindOf(kind)
	metas, err := r.snaps.List()
	if err == nil && len(metas) > 0 {
		_, state, openErr := r.snaps.Open(metas[0].ID)
		if err = openErr; err == nil {
			err = errors.Join(shown.Snapshot(number, state), state.Close())
		}
	}
	if err == nil {
		err = r.each(func(entry *raft.Log) error {
			if entry.Type != raft.LogCommand {
				return nil
			}
			return shown.Entry(entry.Data, entry.Term)
		})
	}
	if err != nil {
		return shown, fmt.Errorf("cannot read the shard: %w", err)
	}
	return shown, nil
}

// MakeSoleVoter durably appends commands, and then a configuration with r as the only voter. term
// must be above r.Term at the first call; a call may be repeated with the same term. raft uses that
// configuration at its next start.
func (r *OfflineReplica) MakeSoleVoter(term uint64, addr string, commands [][]byte) error {
	if err := r.votes.SetTerm(term); err != nil { // before the entries, because no entry is of a later term than the stored one
		return err
	}
	alone := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: r.ID, Address: raft.ServerAddress(addr)}}}
	var entries []*raft.Log
	for _, command := range commands {
		entries = append(entries, &raft.Log{Type: raft.LogCommand, Data: command})
	}
	entries = append(entries, &raft.Log{Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(alone)}) // the last entry, because it marks the replica as done
	for i, entry := range entries {
		entry.Index, entry.Term, entry.AppendedAt = r.LastIndex+1+uint64(i), term, time.Now()
	}
	return r.log.StoreLogs(entries)
}

// HasMajority reports whether a majority of the voters of a configuration is in here.
func HasMajority(c raft.Configuration, here map[raft.ServerID]bool) bool {
	voters, in := 0, 0
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			voters++
			if here[s.ID] {
				in++
			}
		}
	}
	return 2*in > voters
}
