package sources

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
)

// Saved is a source in a backup. The snapshots of the shards have its positions, under its number. It contains no
// secrets, as a configuration only names files.
type Saved struct {
	Name       string                    `json:"name"`
	Number     string                    `json:"number"`           // decimal, as it may exceed 2^53
	Origin     string                    `json:"origin,omitempty"` // the source's number in the backup that it was restored from
	Config     json.RawMessage           `json:"config"`
	Partitions map[uint32]SavedPartition `json:"partitions"`
}

// SavedPartition is a partition of a Saved.
type SavedPartition struct {
	Since     uint32   `json:"since"` // the epoch of the last seek: positions of earlier epochs are invalid
	Start     Position `json:"start"` // where shards without a position begin
	Identity  string   `json:"identity"`
	Changed   Position `json:"changed"`
	ChangedIn string   `json:"changed_in"`
}

// Save returns all sources, sorted by name, after all changes acknowledged before the call.
func (s *Sources) Save(ctx context.Context) ([]Saved, error) {
	n, err := s.cfg.Node()
	if err == nil {
		err = n.CatchUp(ctx)
	}
	if err != nil {
		return nil, err
	}
	all := []Saved{}
	for _, of := range n.Sources() {
		saved := Saved{Name: of.Name, Number: strconv.FormatUint(of.Number, 10), Config: of.Config, Partitions: map[uint32]SavedPartition{}}
		if of.Origin != 0 {
			saved.Origin = strconv.FormatUint(of.Origin, 10)
		}
		for number, p := range of.Partitions {
			saved.Partitions[number] = SavedPartition{Since: p.Since(), Start: p.Start, Identity: p.Identity, Changed: p.Changed, ChangedIn: p.ChangedIn}
		}
		all = append(all, saved)
	}
	return all, nil
}

// RestoreSaved creates a source from the backup of another cluster. The source is paused. Shards
// whose snapshots are restored after that continue from their positions in the backup.
func (s *Sources) RestoreSaved(ctx context.Context, text []byte) (*Source, error) {
	var saved Saved
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&saved); err != nil {
		return nil, &shard.ArgumentError{Field: "body", Problem: err.Error()}
	}
	number, err := strconv.ParseUint(saved.Number, 10, 64)
	if err != nil || number == 0 {
		return nil, &shard.ArgumentError{Field: "number", Problem: "not a number from 1 to 2^64 - 1"}
	}
	if _, err := source.ParseNamed(saved.Name, saved.Config); err != nil {
		return nil, argument(err)
	}
	partitions := make(map[uint32]catalog.Partition, len(saved.Partitions))
	for _, of := range slices.Sorted(maps.Keys(saved.Partitions)) {
		p := saved.Partitions[of]
		if p.Since == 0 {
			return nil, &shard.ArgumentError{Field: fmt.Sprintf("partitions.%d.since", of), Problem: "is 0"}
		}
		partitions[of] = catalog.Partition{Epoch: 1, Origin: p.Since, Start: p.Start, Identity: p.Identity, Changed: p.Changed, ChangedIn: p.ChangedIn}
	}
	n, err := s.cfg.Node()
	if err != nil {
		return nil, err
	}
	of, err := n.RestoreSource(ctx, saved.Name, saved.Config, number, partitions)
	if err != nil {
		return nil, refusal(err)
	}
	return &s.join(ctx, n, []catalog.Source{of})[0], nil
}
