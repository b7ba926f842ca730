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
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
)

// Saved is a source in a backup. The snapshots of the shards contain the source's positions, under
// its number. A Saved contains no secrets, because a configuration has only names of files.
type Saved struct {
	Name       string                    `json:"name"`
	Number     string                    `json:"number"`           // decimal text, because it may exceed 2^53
	Origin     string                    `json:"origin,omitempty"` // number that the source had in the backup from which it was restored; "" if it was not restored
	Config     json.RawMessage           `json:"config"`
	Partitions map[uint32]SavedPartition `json:"partitions"`
}

type SavedPartition struct {
	Since     uint32   `json:"since"` // epoch of the last seek; positions of earlier epochs are invalid
	Start     Position `json:"start"` // where shards without a position begin
	Identity  string   `json:"identity"`
	Changed   Position `json:"changed"`
	ChangedIn string   `json:"changed_in"`
}

// Save returns all sources, sorted by name. The result includes all changes acknowledged before the
// call.
func (s *Sources) Save(ctx context.Context) ([]Saved, error) {
	n, err := s.node()
	if err == nil {
		err = n.CatchUp(ctx)
	}
	if err != nil {
		return nil, err
	}
	all := []Saved{}
	for _, src := range n.Sources() {
		saved := Saved{Name: src.Name, Number: strconv.FormatUint(src.Number, 10), Config: src.Config, Partitions: map[uint32]SavedPartition{}}
		if src.Origin != 0 {
			saved.Origin = strconv.FormatUint(src.Origin, 10)
		}
		for number, p := range src.Partitions {
			saved.Partitions[number] = SavedPartition{Since: p.Since(), Start: p.Start, Identity: p.Identity, Changed: p.Changed, ChangedIn: p.ChangedIn}
		}
		all = append(all, saved)
	}
	return all, nil
}

// RestoreSaved creates a source from the backup of another cluster. The source is paused. After the
// snapshot of a shard is restored too, the shard continues from its position in the backup.
func (s *Sources) RestoreSaved(ctx context.Context, text []byte) (*Source, error) {
	var saved Saved
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&saved); err != nil {
		return nil, &errs.ArgumentError{Field: "body", Problem: err.Error()}
	}
	number, err := strconv.ParseUint(saved.Number, 10, 64)
	if err != nil || number == 0 {
		return nil, &errs.ArgumentError{Field: "number", Problem: "not a number from 1 to 2^64 - 1"}
	}
	if _, err := source.ParseNamed(saved.Name, saved.Config); err != nil {
		return nil, argument(err)
	}
	partitions := make(map[uint32]catalog.Partition, len(saved.Partitions))
	for _, partition := range slices.Sorted(maps.Keys(saved.Partitions)) {
		p := saved.Partitions[partition]
		if p.Since == 0 {
			return nil, &errs.ArgumentError{Field: fmt.Sprintf("partitions.%d.since", partition), Problem: "is 0"}
		}
		partitions[partition] = catalog.Partition{Epoch: 1, Origin: p.Since, Start: p.Start, Identity: p.Identity, Changed: p.Changed, ChangedIn: p.ChangedIn}
	}
	n, err := s.node()
	if err != nil {
		return nil, err
	}
	src, err := n.RestoreSource(ctx, saved.Name, saved.Config, number, partitions)
	if err != nil {
		return nil, refusal(err)
	}
	return &s.join(ctx, n, []catalog.Source{src})[0], nil
}
