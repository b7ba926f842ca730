package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/countd/countd/source/sink"
)

// versionOfSources is the first cluster version with sources. An older program fails at
// their commands and at their sections of log entries.
const versionOfSources = 5

// The bounds of sources.
const (
	// SourcesMax bounds the sources of a cluster: an operator makes one for each queue.
	SourcesMax = 64
	// PartitionsMax bounds the partitions of all sources together. Each has a record in
	// the catalog, which is copied with every command, and a position in every shard.
	PartitionsMax = 4096
	// SourceConfigBytesMax bounds the configuration of a source.
	SourceConfigBytesMax = 16 << 10
	// IdentityBytesMax bounds the identity of a queue.
	IdentityBytesMax = 256
)

// Source is a queue that the nodes read. Its configuration is for package source.
type Source struct {
	// Number is the hash of the cluster's id and, below it, a number that no other source
	// of the cluster ever has. Positions in shards are kept under it.
	Number     uint64               `json:"number"`
	Name       string               `json:"name"`
	Config     json.RawMessage      `json:"config"` // an object
	Paused     bool                 `json:"paused,omitempty"`
	Partitions map[uint32]Partition `json:"partitions,omitempty"` // those that were ever read or sought
}

// Partition is where the reading of one partition of a source begins.
type Partition struct {
	// Epoch counts the seeks and the pauses, from 1. Shards keep a position of one epoch, so
	// no section from before is applied after it.
	Epoch uint32 `json:"epoch"`
	// Sought is the epoch that the last seek began, or 1; 0 if it is Epoch. Positions in
	// shards from it on are carried over to Epoch.
	Sought uint32        `json:"sought,omitempty"`
	Start  sink.Position `json:"start"`
	// Identity names the queue that Start is a position of; "" from a seek until a reader
	// has recorded it.
	Identity string `json:"identity,omitempty"`
}

// Since returns the first epoch whose positions in shards are good.
func (p Partition) Since() uint32 { return cmp.Or(p.Sought, p.Epoch) }

// TakesSources reports whether the cluster version allows sources.
func (v *View) TakesSources() bool { return v.ClusterVersion >= versionOfSources }

// Source returns the source of a number.
func (v *View) Source(number uint64) (Source, bool) {
	for _, s := range v.Sources {
		if s.Number == number {
			return s, true
		}
	}
	return Source{}, false
}

// SourceDeleted reports whether a number belonged to a deleted source of this cluster, whose
// id has the hash cluster. Numbers only rise and are never given again, so this stays true
// in every later view. A view that is too old to know the source reports false.
func (v *View) SourceDeleted(cluster uint32, number uint64) bool {
	_, there := v.Source(number)
	return !there && uint32(number>>32) == cluster && uint32(number) <= v.LastSource
}

// PutSourceEntry makes a source, or replaces the configuration of the one of Number.
type PutSourceEntry struct {
	Name    string          `json:"name"`
	Config  json.RawMessage `json:"config"`
	Number  uint64          `json:"number,omitempty"`  // 0 makes a source
	Cluster uint32          `json:"cluster,omitempty"` // hash of the cluster's id, for a new source
	Paused  bool            `json:"paused,omitempty"`  // a new source is, or one of NewMeaning
	// NewMeaning says that messages mean something else from now on. The source must be paused.
	// It gets a new number, because a reader that has yet to learn of the change has the old
	// one.
	NewMeaning bool `json:"new_meaning,omitempty"`
	// Partitions are for NewMeaning those of the source: their epochs, and as Start the
	// position that all shards have. They must be all, and at these epochs still.
	Partitions map[uint32]Partition `json:"partitions,omitempty"`
}

// PauseSourceEntry pauses or resumes a source. A pause raises the epochs of its partitions.
type PauseSourceEntry struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
}

// DeleteSourceEntry deletes the source of a name and number.
type DeleteSourceEntry struct {
	Name   string `json:"name"`
	Number uint64 `json:"number"`
}

// SeekSourceEntry sets where partitions of the paused source of a name and number continue.
type SeekSourceEntry struct {
	Name      string                   `json:"name"`
	Number    uint64                   `json:"number"`
	Positions map[uint32]sink.Position `json:"positions"`
	// Epochs are those of the same partitions when all shards were fenced, 0 for those that had
	// not begun. A partition that was resumed and paused since may have a reader that is not
	// fenced.
	Epochs map[uint32]uint32 `json:"epochs"`
}

// StartSourceEntry records where partitions of a queue begin and what queue it is, for those
// of which that is not recorded. After a seek it records only the identity.
type StartSourceEntry struct {
	Number   uint64                   `json:"number"`
	Starts   map[uint32]sink.Position `json:"starts"`
	Identity string                   `json:"identity"`
}

func (c *PutSourceEntry) apply(v *View) (Result, bool) {
	s, exists := v.Sources[c.Name]
	switch {
	case !v.TakesSources():
		return refused("a source in a cluster of version %d", v.ClusterVersion)
	case !ValidSourceName(c.Name):
		return refused("a source of name %q: it must be 1 to 64 of a-z, 0-9, - and _, a letter or digit first", c.Name)
	case exists && c.Number == 0:
		return Result{Source: s, Exists: true}, false
	case c.Number != 0 && s.Number != c.Number:
		return Result{Missing: true}, false
	case c.NewMeaning && c.Number == 0:
		return refused("a new source %s with another meaning", c.Name)
	case c.NewMeaning && !s.Paused:
		return refused("source %s is not paused", c.Name)
	}
	config, err := json.Marshal(c.Config) // without spaces, as View.encoded has it
	if err == nil {
		err = checkConfig(config)
	}
	if err != nil {
		return refused("source %s: %v", c.Name, err)
	}
	if exists && !c.NewMeaning {
		changed := string(s.Config) != string(config)
		s.Config = config
		return v.putSource(s), changed
	}
	if !exists && len(v.Sources) >= SourcesMax {
		return pastBound(BoundSources, "there are %d sources, the most that a cluster takes", SourcesMax)
	}
	if v.LastSource == math.MaxUint32 {
		return refused("there were %d sources", v.LastSource)
	}
	partitions, err := c.begun(s.Partitions)
	if err != nil {
		return refused("source %s: %v", c.Name, err)
	}
	v.LastSource++
	return v.putSource(Source{
		Number: uint64(c.Cluster)<<32 | uint64(v.LastSource), Name: c.Name, Config: config, Paused: c.Paused, Partitions: partitions,
	}), true
}

// begun returns the partitions of a new number, which begin where those of the old one are.
func (c *PutSourceEntry) begun(old map[uint32]Partition) (map[uint32]Partition, error) {
	if len(c.Partitions) != len(old) {
		return nil, fmt.Errorf("it has %d partitions, not %d", len(old), len(c.Partitions))
	}
	var all map[uint32]Partition
	for _, number := range slices.Sorted(maps.Keys(c.Partitions)) {
		at := c.Partitions[number]
		p, there := old[number]
		if !there || p.Epoch != at.Epoch {
			return nil, fmt.Errorf("partition %d is at epoch %d, not %d", number, p.Epoch, at.Epoch)
		}
		if all == nil {
			all = map[uint32]Partition{}
		}
		all[number] = Partition{Epoch: 1, Start: at.Start, Identity: p.Identity}
	}
	return all, nil
}

// putSource stores a source.
func (v *View) putSource(s Source) Result {
	v.Sources[s.Name] = s
	return Result{Source: s}
}

func checkConfig(config json.RawMessage) error {
	if len(config) > SourceConfigBytesMax {
		return fmt.Errorf("a configuration of %d bytes, the bound is %d", len(config), SourceConfigBytesMax)
	}
	if !json.Valid(config) || config[0] != '{' {
		return fmt.Errorf("a configuration that is no JSON object")
	}
	return nil
}

func (c *PauseSourceEntry) apply(v *View) (Result, bool) {
	s, exists := v.Sources[c.Name]
	if !exists {
		return Result{Missing: true}, false
	}
	if s.Paused == c.Paused {
		return Result{Source: s}, false
	}
	if s.Paused = c.Paused; s.Paused {
		s.Partitions = maps.Clone(s.Partitions)
		for number, p := range s.Partitions {
			p.Sought = p.Since()
			p.Epoch++
			s.Partitions[number] = p
		}
	}
	return v.putSource(s), true
}

func (c *DeleteSourceEntry) apply(v *View) (Result, bool) {
	s, exists := v.Sources[c.Name]
	if !exists || s.Number != c.Number {
		return Result{Missing: true}, false
	}
	delete(v.Sources, c.Name)
	return Result{Source: s}, true
}

func (c *SeekSourceEntry) apply(v *View) (Result, bool) {
	s, exists := v.Sources[c.Name]
	switch {
	case !exists:
		return Result{Missing: true}, false
	case s.Number != c.Number:
		return refused("source %s is another one, or its messages mean something else by now", c.Name)
	case !s.Paused:
		return refused("source %s is not paused", c.Name)
	case len(c.Positions) == 0:
		return refused("a seek of source %s without positions", c.Name)
	}
	done := true // by an earlier copy of the command
	for partition, at := range c.Positions {
		p, fenced := s.Partitions[partition], c.Epochs[partition]
		done = done && p.Epoch == fenced+1 && p.Sought == 0 && p.Start == at // a pause keeps Start too
	}
	if done {
		return Result{Source: s}, false
	}
	for _, partition := range slices.Sorted(maps.Keys(c.Positions)) {
		if p, fenced := s.Partitions[partition], c.Epochs[partition]; p.Epoch != fenced {
			return refused("partition %d of source %s is at epoch %d, not %d: it was changed meanwhile", partition, c.Name, p.Epoch, fenced)
		}
	}
	s.Partitions = owned(s.Partitions)
	for partition, at := range c.Positions {
		s.Partitions[partition] = Partition{Epoch: s.Partitions[partition].Epoch + 1, Start: at}
	}
	if result, full := v.partitionsFull(&s); full {
		return result, false
	}
	return v.putSource(s), true
}

func (c *StartSourceEntry) apply(v *View) (Result, bool) {
	s, exists := v.Source(c.Number)
	if !exists {
		return Result{Missing: true}, false
	}
	if c.Identity == "" || len(c.Identity) > IdentityBytesMax {
		return refused("source %s: an identity of %d bytes is not 1…%d", s.Name, len(c.Identity), IdentityBytesMax)
	}
	s.Partitions = owned(s.Partitions)
	changed := false
	for partition, start := range c.Starts {
		p, known := s.Partitions[partition]
		if p.Identity != "" {
			continue
		}
		if !known {
			p = Partition{Epoch: 1, Start: start}
		}
		p.Identity = c.Identity
		s.Partitions[partition], changed = p, true
	}
	if !changed {
		return Result{Source: s}, false
	}
	if result, full := v.partitionsFull(&s); full {
		return result, false
	}
	return v.putSource(s), true
}

// partitionsFull refuses a change of a source that makes too many partitions.
func (v *View) partitionsFull(s *Source) (Result, bool) {
	if n := v.partitions() - len(v.Sources[s.Name].Partitions) + len(s.Partitions); n > PartitionsMax {
		result, _ := pastBound(BoundPartitions, "%d partitions of sources, a cluster takes at most %d", n, PartitionsMax)
		return result, true
	}
	return Result{}, false
}

// partitions returns the number of partitions of all sources.
func (v *View) partitions() (n int) {
	for _, s := range v.Sources {
		n += len(s.Partitions)
	}
	return n
}

// checkSources refuses sources that no commands produce.
func (v *View) checkSources() error {
	if len(v.Sources) > 0 && !v.TakesSources() || len(v.Sources) > SourcesMax || v.partitions() > PartitionsMax {
		return fmt.Errorf("%d sources with %d partitions in a cluster of version %d", len(v.Sources), v.partitions(), v.ClusterVersion)
	}
	numbers := map[uint64]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.Sources)) {
		s := v.Sources[name]
		if s.Name != name || !ValidSourceName(name) || numbers[s.Number] || uint32(s.Number) == 0 || uint32(s.Number) > v.LastSource {
			return fmt.Errorf("source %d %q stands under %q, the last number is %d", s.Number, s.Name, name, v.LastSource)
		}
		numbers[s.Number] = true
		if err := checkConfig(s.Config); err != nil {
			return fmt.Errorf("source %s: %w", name, err)
		}
		for partition, p := range s.Partitions {
			if p.Epoch == 0 || p.Sought >= p.Epoch || len(p.Identity) > IdentityBytesMax {
				return fmt.Errorf("source %s: partition %d: %+v", name, partition, p)
			}
		}
	}
	return nil
}
