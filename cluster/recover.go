package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

const (
	recoveryFile   = "recovery.json"  // the plan of a recovery that is not complete
	recoveredFile  = "recovered.json" // the plan of the last recovery, not yet reported by countd
	reportedFile   = "recovered-reported.json"
	recoveryFormat = 1
	// recoveryBytesMax bounds a read of these files: catalog.GroupsMax groups and catalog.NodesMax
	// nodes have under a fifth of it.
	recoveryBytesMax = 4 << 20
)

var (
	// ErrRecovering is returned by OpenDataDir for a directory whose recovery is not complete.
	ErrRecovering = errors.New("countctl recover was interrupted here: run it again with the same directories")
	// ErrCannotRecover is returned if a recovery would not be safe, or has nothing to do.
	ErrCannotRecover = errors.New("cannot recover")
)

// Recovery is the plan of a recovery after a majority was lost for good, and the record of what it
// did. DESIGN.md has the argument.
type Recovery struct {
	Format int              `json:"format"` // recoveryFormat
	At     time.Time        `json:"at"`     // by the clock of the machine that made the plan
	From   string           `json:"from"`   // cluster id before
	To     string           `json:"to"`     // cluster id after
	Nodes  []string         `json:"nodes"`  // keys of the survivors, ascending
	Lost   []string         `json:"lost"`   // keys of all other nodes, ascending
	Groups []RecoveredGroup `json:"groups"` // ascending
}

// RecoveredGroup is what a recovery does to a group.
type RecoveredGroup struct {
	Group    uint32 `json:"group"`
	Keyspace string `json:"keyspace"` // "" for the catalog
	Shard    int    `json:"shard"`
	// Node is the key of the node with the newest replica; "" if no survivor has a replica.
	Node string `json:"node"`
	// Kept is set if a majority of the group's voters survives, so that the recovery leaves it alone.
	Kept bool `json:"kept"`
	// Damaged holds the keys of the nodes with a damaged replica, ascending. They delete it at their
	// next start.
	Damaged []string `json:"damaged,omitempty"`
	// Index is the last entry of the newest replica. The entries up to Committed are certainly
	// committed. Written is when a leader appended the last entry; zero if unknown.
	Index     uint64    `json:"index"`
	Committed uint64    `json:"committed"`
	Written   time.Time `json:"written,omitzero"`
	// Term is the term of the entries that the recovery appends; 0 for none.
	Term uint64 `json:"term"`
}

// Name returns the name of the group, such as posts/3.
func (g *RecoveredGroup) Name() string {
	if g.Group == catalog.Group {
		return "meta"
	}
	return fmt.Sprintf("%s/%d", g.Keyspace, g.Shard)
}

// LostGroups returns the names of the groups that have no replica on any survivor.
func (r *Recovery) LostGroups() (names []string) {
	for _, g := range r.Groups {
		if g.Node == "" {
			names = append(names, g.Name())
		}
	}
	return names
}

// Survivors is the locked data directories of the surviving nodes. It plans a recovery and carries
// it out.
type Survivors struct {
	nodes []*survivor // ascending by key
	view  *catalog.View
	meta  *replica.OfflineReplica // the newest replica of the catalog, before the recovery

	// stepped is called before each durable step; for tests, which return an error to stop there.
	stepped func(what string) error
}

type survivor struct {
	*DataDir
	offline  *replica.Offline
	replicas map[uint32]*replica.OfflineReplica
	damaged  map[uint32]bool // groups whose replica is damaged
	plan     *Recovery       // in recoveryFile; nil for none
}

// OpenSurvivors locks and opens the data directories of stopped nodes. It changes nothing but what a
// start of the node would.
// waits is called each time that a write waits for a full disk; nil for no call.
func OpenSurvivors(paths []string, waits func(error)) (_ *Survivors, err error) {
	s := &Survivors{stepped: func(string) error { return nil }}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join(path, identityFile)); err != nil {
			return nil, fmt.Errorf("%q is no data directory of a node: %w", path, err)
		}
		d, err := openDataDir(path, "", true)
		if err != nil {
			return nil, err
		}
		n := &survivor{DataDir: d, replicas: map[uint32]*replica.OfflineReplica{}, damaged: map[uint32]bool{}}
		s.nodes = append(s.nodes, n)
		if err := n.open(waits); err != nil {
			return nil, fmt.Errorf("%q: %w", path, err)
		}
	}
	slices.SortFunc(s.nodes, func(a, b *survivor) int { return strings.Compare(a.Identity.Key(), b.Identity.Key()) })
	for i := 1; i < len(s.nodes); i++ {
		if s.nodes[i].Identity.Key() == s.nodes[i-1].Identity.Key() {
			return nil, fmt.Errorf("%w: %q and %q are of one node", ErrCannotRecover, s.nodes[i-1].path, s.nodes[i].path)
		}
	}
	return s, nil
}

func (n *survivor) open(waits func(error)) (err error) {
	if n.Identity.ClusterID == "" {
		return fmt.Errorf("%w: the node has no cluster", ErrCannotRecover)
	}
	if n.plan, err = readRecovery(filepath.Join(n.path, recoveryFile)); err != nil {
		return err
	}
	if n.offline, err = replica.OpenOffline(n.GroupsDir(), n.Identity.Key(), waits); err != nil {
		return err
	}
	for _, group := range n.offline.Groups() {
		r, err := n.offline.Open(group)
		if errors.Is(err, replica.ErrDamaged) && group != catalog.Group { // a node never begins a second replica of the catalog
			n.damaged[group] = true
			continue
		}
		if err != nil {
			return err
		}
		if r != nil {
			n.replicas[group] = r
		}
	}
	return nil
}

// Close closes the directories.
func (s *Survivors) Close() (err error) {
	for _, n := range s.nodes {
		for _, r := range n.replicas {
			err = errors.Join(err, r.Close())
		}
		if n.offline != nil {
			err = errors.Join(err, n.offline.Close())
		}
		err = errors.Join(err, n.DataDir.Close())
	}
	return err
}

func readRecovery(path string) (*Recovery, error) {
	raw, err := readChecked(path, recoveryBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &Recovery{}
	if err == nil {
		err = strictJSON(raw, recoveryBytesMax, r)
	}
	if err == nil && r.Format != recoveryFormat {
		err = fmt.Errorf("format %d, not %d", r.Format, recoveryFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return r, nil
}

// nextEpoch returns a new cluster id with the first half of the old one; see rpc.AfterRecovery.
func nextEpoch(id string) string {
	half := len(id) / 2
	return id[:half] + randomHex(clusterIDBytes/2)
}

// Recover carries out the plan that Plan has returned. After an error, or a crash, OpenSurvivors,
// Plan and Recover with the same directories complete it.
func (s *Survivors) Recover(plan *Recovery) error {
	renaming := slices.ContainsFunc(s.nodes, func(n *survivor) bool { return n.plan == nil && n.Identity.ClusterID == plan.To })
	if !renaming {
		for _, step := range []func(*Recovery) error{s.writePlan, s.markNodes, s.changeGroups, s.changeCluster} {
			if err := step(plan); err != nil {
				return err
			}
		}
	}
	for _, n := range s.nodes {
		path := filepath.Join(n.path, recoveryFile)
		if err := s.stepped("rename " + path); err != nil {
			return err
		}
		if err := os.Rename(path, filepath.Join(n.path, recoveredFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot complete the recovery: %w", err)
		}
		if err := program.SyncDir(n.path); err != nil {
			return fmt.Errorf("cannot complete the recovery: %w", err)
		}
	}
	return nil
}

func (s *Survivors) writePlan(plan *Recovery) error {
	raw, err := json.Marshal(plan)
	if err != nil {
		return fmt.Errorf("cannot encode the recovery: %w", err)
	}
	for _, n := range s.nodes {
		if err := s.stepped("plan " + n.path); err != nil {
			return err
		}
		if err := replaceChecked(filepath.Join(n.path, recoveryFile), append(raw, '\n')); err != nil {
			return fmt.Errorf("cannot write the recovery: %w", err)
		}
	}
	return nil
}

// node returns the survivor with a key.
func (s *Survivors) node(key string) *survivor {
	return s.nodes[slices.IndexFunc(s.nodes, func(n *survivor) bool { return n.Identity.Key() == key })]
}

func (s *Survivors) changeGroups(plan *Recovery) error {
	for _, g := range plan.Groups {
		for _, key := range g.Damaged {
			if err := s.stepped("set aside " + g.Name()); err != nil {
				return err
			}
			if err := s.node(key).offline.SetAside(g.Group); err != nil {
				return fmt.Errorf("cannot set the damaged replica of %s aside: %w", g.Name(), err)
			}
		}
		if g.Kept || g.Node == "" {
			continue
		}
		r := s.node(g.Node).replicas[g.Group]
		if r == nil {
			return fmt.Errorf("%w: the replica of %s on %s has gone since the plan was made", ErrCannotRecover, g.Name(), g.Node)
		}
		if r.HasSoleVoter(g.Term) {
			continue
		}
		commands, err := s.commands(plan, g.Group)
		if err != nil {
			return err
		}
		if err := s.stepped("group " + g.Name()); err != nil {
			return err
		}
		if err := r.MakeSoleVoter(g.Term, s.view.Nodes[g.Node].ClusterAddr, commands); err != nil {
			return fmt.Errorf("cannot recover %s: %w", g.Name(), err)
		}
	}
	return nil
}

// markNodes makes all programs refuse to start in the directories, even programs that do not know recoveryFile.
func (s *Survivors) markNodes(*Recovery) error {
	return s.changeIdentities("mark", func(id *Identity) { id.Format = identityRecovering })
}

// changeCluster gives all directories the new cluster id, and lets programs open them.
func (s *Survivors) changeCluster(plan *Recovery) error {
	return s.changeIdentities("cluster", func(id *Identity) { id.Format, id.ClusterID = identityFormat, plan.To })
}

func (s *Survivors) changeIdentities(step string, change func(*Identity)) error {
	for _, n := range s.nodes {
		if err := s.stepped(step + " " + n.path); err != nil {
			return err
		}
		id := n.Identity
		change(&id)
		if err := writeIdentity(filepath.Join(n.path, identityFile), id); err != nil {
			return err
		}
		n.Identity = id
	}
	return nil
}

// ReportRecovered calls report with a recovery of this directory that no start has reported yet, if
// there is one. A crash may make the next start repeat the call.
func (d *DataDir) ReportRecovered(report func(*Recovery)) error {
	path := filepath.Join(d.path, recoveredFile)
	r, err := readRecovery(path)
	if r == nil || err != nil {
		return err // names the file, which nothing but this report needs
	}
	report(r)
	return os.Rename(path, filepath.Join(d.path, reportedFile))
}
