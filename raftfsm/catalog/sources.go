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

// The bounds of sources.
const (
	// SourcesMax bounds the sources of a cluster: an operator makes one for each queue.
	SourcesMax = 64
	// PartitionsMax bounds the partitions of all sources together. Each partition has a record in
	// the catalog, which every command copies, and a position in every shard.
	PartitionsMax = 4096
	// SourceConfigBytesMax bounds the configuration of a source.
	SourceConfigBytesMax = 16 << 10
	// IdentityBytesMax bounds the identity of a queue.
	IdentityBytesMax = 256
)

// Source is a queue that the nodes read. Package source interprets its configuration.
type Source struct {
	// The upper half of Number is the hash of the cluster's id. The lower half is a number that no
	// other source of the cluster ever has. Shards store positions under Number.
	Number uint64 `json:"number"`
	// Origin is the number that the source had in another cluster, if the source was made from a backup
	// of that cluster. Restored shards have positions under this number.
	Origin uint64 `json:"origin,omitempty"`
	// Version changes with each change of the source. No other source of the cluster ever has the
	// same version. A command carries the version that its sender read, and fails if the source now
	// has another version.
	Version uint64          `json:"version"`
	Name    string          `json:"name"`
	Config  json.RawMessage `json:"config"` // an object
	Paused  bool            `json:"paused,omitempty"`
	// Changing means that not an operator but a change of the source has paused it. When the change
	// ends, the source resumes.
	Changing   bool                 `json:"changing,omitempty"`
	Partitions map[uint32]Partition `json:"partitions,omitempty"` // the partitions that a reader has read, or whose position an operator has set
	// LastRejected is nil while the partitions have rejected nothing.
	LastRejected *Rejection `json:"last_rejected,omitempty"`
}

// Partition is the state of one partition of a source.
type Partition struct {
	// Epoch counts the seeks and the pauses, from 1. A shard's position has one epoch, so the shard
	// refuses sections of earlier epochs.
	Epoch uint32 `json:"epoch"`
	// Sought is the epoch that the last seek began, or 1 if there was no seek. The value 0 means
	// Epoch. Shards adopt their positions of this epoch and later epochs as positions of Epoch.
	Sought uint32 `json:"sought,omitempty"`
	// Origin is the first epoch whose positions under the source's Origin are valid. A seek resets it.
	Origin uint32        `json:"origin,omitempty"`
	Start  sink.Position `json:"start"`
	// Identity names the queue that Start refers to. It is "" after a seek, until a reader has
	// recorded the queue.
	Identity string `json:"identity,omitempty"`
	// Changed is the position of the first message that the present configuration counts. An earlier
	// configuration, which made other ops of a message, has counted the messages below Changed. It
	// read them from the queue with the identity ChangedIn, or from an unknown queue if ChangedIn is
	// "". Changed is zero if there was no such configuration.
	Changed   sink.Position `json:"changed,omitzero"`
	ChangedIn string        `json:"changed_in,omitempty"`
	// Rejected counts the messages and ops below RejectedTo that could not be applied.
	Rejected   uint64        `json:"rejected,omitempty"`
	RejectedTo sink.Position `json:"rejected_to,omitzero"`
}

// Rejection is the last message, or op of a message, that a source could not apply.
type Rejection struct {
	Partition uint32        `json:"partition"`
	Position  sink.Position `json:"position"`
	Reason    string        `json:"reason"`
}

// ReasonBytesMax bounds the reason of a Rejection.
const ReasonBytesMax = 256

// MeantFrom returns the position from which the source's present configuration counts the
// messages.
func (p Partition) MeantFrom() sink.Position {
	if p.ChangedIn != "" && p.ChangedIn != p.Identity {
		return sink.Position{} // the position is one of another queue
	}
	return p.Changed
}

// changedAt returns the partition as it continues under the source's next number. at is the
// position of all shards.
func (p Partition) changedAt(at sink.Position) Partition {
	next := Partition{Epoch: 1, Start: at, Identity: p.Identity, Changed: p.Changed, ChangedIn: p.ChangedIn}
	counted := p.Since() > 1 || p.Start != at // the earlier configuration may have counted messages
	if counted && p.MeantFrom().Less(at) {
		next.Changed, next.ChangedIn = at, p.Identity
	}
	return next
}

// Since returns the first epoch whose positions in shards are still valid.
func (p Partition) Since() uint32 { return cmp.Or(p.Sought, p.Epoch) }

// Source returns the source with a number.
func (v *View) Source(number uint64) (Source, bool) {
	for _, s := range v.Sources {
		if s.Number == number {
			return s, true
		}
	}
	return Source{}, false
}

// SourceDeleted reports whether number belonged to a deleted source of this cluster, whose id
// hashes to cluster. Numbers only rise and are never reused, so this stays true in every later
// view. A view that is too old to know the source reports false.
func (v *View) SourceDeleted(cluster uint32, number uint64) bool {
	_, there := v.Source(number)
	return !there && uint32(number>>32) == cluster && uint32(number) <= v.LastSource
}

// PutSourceEntry creates a source, or replaces the configuration of a source that still has
// Version.
type PutSourceEntry struct {
	Name    string          `json:"name"`
	Config  json.RawMessage `json:"config"`
	Version uint64          `json:"version,omitempty"` // 0 creates a source
	Cluster uint32          `json:"cluster,omitempty"` // hash of the cluster's id, for a new number
	// If Paused is set, a new source is paused with Changing set, and a paused source stays as it
	// is. If Paused is not set, the source runs.
	Paused bool `json:"paused,omitempty"`
	// NewMeaning means that messages have another meaning from now on. The source must be paused.
	// It gets a new number, because a reader that does not know of the change still uses the old
	// number.
	NewMeaning bool `json:"new_meaning,omitempty"`
	// Positions are the positions of all shards, by partition; only with NewMeaning.
	Positions map[uint32]sink.Position `json:"positions,omitempty"`
	// If Origin is not 0, the entry creates a source from the backup of another cluster, with the
	// Partitions of that backup. The source is paused as if by an operator.
	Origin     uint64               `json:"origin,omitempty"`
	Partitions map[uint32]Partition `json:"partitions,omitempty"`
}

// PauseSourceEntry pauses or resumes a source, if it still has Version. Pausing a running source
// raises the epochs of its partitions.
type PauseSourceEntry struct {
	Name     string `json:"name"`
	Version  uint64 `json:"version"`
	Paused   bool   `json:"paused"`
	Changing bool   `json:"changing,omitempty"` // with Paused: a change pauses the source, and will resume it
}

// DeleteSourceEntry deletes a source, if it still has Version.
type DeleteSourceEntry struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
}

// SeekSourceEntry sets the positions at which partitions of a paused source continue. For each of the
// partitions that had begun, the sender has fenced all shards. Afterwards the source counts as paused by an
// operator.
type SeekSourceEntry struct {
	Name      string                   `json:"name"`
	Version   uint64                   `json:"version"`
	Positions map[uint32]sink.Position `json:"positions"`
}

// StartSourceEntry records the first positions of partitions, and the identity of their queue. It
// skips a partition for which both are recorded already. After a seek in a partition, it records
// only the identity.
type StartSourceEntry struct {
	Number   uint64                   `json:"number"`
	Starts   map[uint32]sink.Position `json:"starts"`
	Identity string                   `json:"identity"`
}

// sourceOf returns the named source for a command whose sender has read the given version. If the
// source is missing or has another version, misfit is the result for the command. Otherwise misfit
// is nil.
func (v *View) sourceOf(name string, version uint64) (s Source, misfit *Result) {
	s, exists := v.Sources[name]
	switch {
	case !exists:
		return s, &Result{Missing: true}
	case s.Version != version:
		return s, &Result{Source: s, Exists: true}
	}
	return s, nil
}

// putSource stores a changed source. It refuses the change if all sources together would have too
// many partitions.
func (v *View) putSource(s Source) (Result, bool) {
	if n := v.partitions() - len(v.Sources[s.Name].Partitions) + len(s.Partitions); n > PartitionsMax {
		return pastBound(BoundPartitions, "%d partitions of sources, a cluster takes at most %d", n, PartitionsMax)
	}
	v.SourceVersion++
	s.Version = v.SourceVersion
	v.Sources[s.Name] = s
	return Result{Source: s}, true
}

// RejectSourceEntry counts the messages that a partition of a source has rejected between Was and
// To. The catalog applies it only if RejectedTo is still Was. So two readers do not count the same
// message. It does not change the version of the source, because no other command depends on these
// numbers.
type RejectSourceEntry struct {
	Number   uint64        `json:"number"`
	Was      sink.Position `json:"was"`
	To       sink.Position `json:"to"`
	Rejected uint64        `json:"rejected"` // below To
	Last     Rejection     `json:"last"`
}

func (c *RejectSourceEntry) apply(v *View) (Result, bool) {
	s, exists := v.Source(c.Number)
	p, begun := s.Partitions[c.Last.Partition]
	switch {
	case !exists || !begun:
		return Result{Missing: true}, false
	case p.RejectedTo != c.Was || !c.Was.Less(c.To):
		return Result{Source: s, Exists: true}, false
	case len(c.Last.Reason) > ReasonBytesMax:
		return refused("a reason of %d bytes, the bound is %d", len(c.Last.Reason), ReasonBytesMax)
	}
	p.Rejected += c.Rejected
	p.RejectedTo = c.To
	s.Partitions = maps.Clone(s.Partitions)
	s.Partitions[c.Last.Partition] = p
	s.LastRejected = &c.Last
	v.Sources[s.Name] = s
	return Result{Source: s}, true
}

func (c *PutSourceEntry) apply(v *View) (Result, bool) {
	var s Source
	if c.Version != 0 {
		var misfit *Result
		if s, misfit = v.sourceOf(c.Name, c.Version); misfit != nil {
			return *misfit, false
		}
	} else if taken, exists := v.Sources[c.Name]; exists {
		return Result{Source: taken, Exists: true}, false
	}
	exists := c.Version != 0
	switch {
	case !ValidSourceName(c.Name):
		return refused("a source of name %q: it must be 1 to 64 of a-z, 0-9, - and _, a letter or digit first", c.Name)
	case c.NewMeaning && !exists:
		return refused("a new source %s with another meaning", c.Name)
	case c.NewMeaning && !s.Paused:
		return refused("source %s is not paused", c.Name)
	case c.Origin != 0 && (exists || !c.Paused):
		return refused("source %s of a backup is there, or runs", c.Name)
	case exists && c.Paused && !s.Paused:
		return refused("source %s runs, and only a pause ends that", c.Name)
	case !exists && len(v.Sources) >= SourcesMax:
		return pastBound(BoundSources, "there are %d sources, the most that a cluster takes", SourcesMax)
	}
	config, err := json.Marshal(c.Config) // compact JSON, as View.encoded writes it
	if err == nil {
		err = checkConfig(config)
	}
	if err != nil {
		return refused("source %s: %v", c.Name, err)
	}
	changing := s.Changing
	if !exists {
		changing = c.Origin == 0
	}
	s.Name, s.Config, s.Paused, s.Changing = c.Name, config, c.Paused, c.Paused && changing
	if exists && !c.NewMeaning {
		return v.putSource(s)
	}
	if s.Partitions, err = c.begun(s.Partitions); err != nil {
		return refused("source %s: %v", c.Name, err)
	}
	if v.LastSource == math.MaxUint32 {
		return refused("there were %d sources", v.LastSource)
	}
	if c.Origin != 0 {
		for number, p := range c.Partitions {
			if p.Epoch != 1 || p.Sought != 0 || max(len(p.Identity), len(p.ChangedIn)) > IdentityBytesMax {
				return refused("source %s: partition %d begins at epoch %d, or has an identity of over %d bytes", c.Name, number, p.Epoch, IdentityBytesMax)
			}
		}
		s.Partitions = maps.Clone(c.Partitions)
	}
	v.LastSource++
	s.Origin = c.Origin
	s.LastRejected = nil // LastRejected was rejected under the old meaning
	s.Number = uint64(c.Cluster)<<32 | uint64(v.LastSource)
	return v.putSource(s)
}

// begun returns the partitions for the source's new number. They begin at the positions that the
// old partitions have reached.
func (c *PutSourceEntry) begun(old map[uint32]Partition) (map[uint32]Partition, error) {
	if len(c.Positions) != len(old) {
		return nil, fmt.Errorf("it has %d partitions, not %d", len(old), len(c.Positions))
	}
	var all map[uint32]Partition
	for _, number := range slices.Sorted(maps.Keys(c.Positions)) {
		p, there := old[number]
		if !there {
			return nil, fmt.Errorf("it has no partition %d", number)
		}
		if all == nil {
			all = map[uint32]Partition{}
		}
		all[number] = p.changedAt(c.Positions[number])
	}
	return all, nil
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
	s, misfit := v.sourceOf(c.Name, c.Version)
	if misfit != nil {
		return *misfit, false
	}
	if c.Paused && !s.Paused {
		s.Partitions = maps.Clone(s.Partitions)
		for number, p := range s.Partitions {
			p.Sought = p.Since()
			p.Epoch++
			s.Partitions[number] = p
		}
	}
	s.Paused, s.Changing = c.Paused, c.Paused && c.Changing
	return v.putSource(s)
}

func (c *DeleteSourceEntry) apply(v *View) (Result, bool) {
	s, misfit := v.sourceOf(c.Name, c.Version)
	if misfit != nil {
		return *misfit, false
	}
	delete(v.Sources, c.Name)
	return Result{Source: s}, true
}

func (c *SeekSourceEntry) apply(v *View) (Result, bool) {
	s, misfit := v.sourceOf(c.Name, c.Version)
	switch {
	case misfit != nil:
		return *misfit, false
	case !s.Paused:
		return refused("source %s is not paused", c.Name)
	case len(c.Positions) == 0:
		return refused("a seek of source %s without positions", c.Name)
	}
	s.Changing = false
	s.Partitions = owned(s.Partitions)
	for partition, at := range c.Positions {
		p := s.Partitions[partition]
		s.Partitions[partition] = Partition{
			Epoch: p.Epoch + 1, Start: at, Changed: p.Changed, ChangedIn: p.ChangedIn,
			Rejected: p.Rejected, RejectedTo: at, // a rejected message counts again when it is read again
		}
	}
	return v.putSource(s)
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
	return v.putSource(s)
}

// partitions returns the number of partitions of all sources.
func (v *View) partitions() (n int) {
	for _, s := range v.Sources {
		n += len(s.Partitions)
	}
	return n
}
