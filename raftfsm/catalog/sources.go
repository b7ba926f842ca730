package catalog

import (
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
	// Epoch counts the seeks, from 1. Shards keep a position of one epoch, so no section
	// from before a seek is applied after it.
	Epoch uint32        `json:"epoch"`
	Start sink.Position `json:"start"`
	// Identity names the queue that Start is a position of; "" from a seek until a reader
	// has recorded it.
	Identity string `json:"identity,omitempty"`
}

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
	Paused  bool            `json:"paused,omitempty"`  // a new source is
	// OnlyPaused refuses the change of a source that is not paused.
	OnlyPaused bool `json:"only_paused,omitempty"`
}

// PauseSourceEntry pauses or resumes a source.
type PauseSourceEntry struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
}

// DeleteSourceEntry deletes the source of a name and number.
type DeleteSourceEntry struct {
	Name   string `json:"name"`
	Number uint64 `json:"number"`
}

// SeekSourceEntry sets where partitions of a paused source continue.
type SeekSourceEntry struct {
	Name      string                   `json:"name"`
	Positions map[uint32]sink.Position `json:"positions"`
}

// StartSourceEntry records where a partition begins and what queue it is of, unless that
// is recorded. After a seek it records only the identity.
type StartSourceEntry struct {
	Number    uint64        `json:"number"`
	Partition uint32        `json:"partition"`
	Start     sink.Position `json:"start"`
	Identity  string        `json:"identity"`
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
	case c.OnlyPaused && !s.Paused:
		return refused("source %s is not paused", c.Name)
	}
	config, err := json.Marshal(c.Config) // without spaces, as View.encoded has it
	if err == nil {
		err = checkConfig(config)
	}
	if err != nil {
		return refused("source %s: %v", c.Name, err)
	}
	if exists {
		changed := string(s.Config) != string(config)
		s.Config = config
		return v.putSource(s), changed
	}
	if len(v.Sources) >= SourcesMax {
		return pastBound(BoundSources, "there are %d sources, the most that a cluster takes", SourcesMax)
	}
	if v.LastSource == math.MaxUint32 {
		return refused("there were %d sources", v.LastSource)
	}
	v.LastSource++
	return v.putSource(Source{Number: uint64(c.Cluster)<<32 | uint64(v.LastSource), Name: c.Name, Config: config, Paused: c.Paused}), true
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
	changed := s.Paused != c.Paused
	s.Paused = c.Paused
	return v.putSource(s), changed
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
	case !s.Paused:
		return refused("source %s is not paused", c.Name)
	case len(c.Positions) == 0:
		return refused("a seek of source %s without positions", c.Name)
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
	p, known := s.Partitions[c.Partition]
	if p.Identity != "" {
		return Result{Source: s}, false
	}
	if !known {
		p = Partition{Epoch: 1, Start: c.Start}
	}
	p.Identity = c.Identity
	s.Partitions = owned(s.Partitions)
	s.Partitions[c.Partition] = p
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
			if p.Epoch == 0 || len(p.Identity) > IdentityBytesMax {
				return fmt.Errorf("source %s: partition %d: %+v", name, partition, p)
			}
		}
	}
	return nil
}
