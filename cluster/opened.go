package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
)

const (
	openedFile   = "groups.json"
	openedFormat = 1
	// openedBytesMax bounds a read of the file. The bound allows some 90,000 groups. Nodes usually
	// have 64.
	openedBytesMax = 1 << 20
)

// openedGroups is the durable set of the groups of which this node has a replica. If a group in the
// set has no log, somebody removed the log by hand. The node must not start that group with an
// empty log, because the replica could then vote twice in a term.
type openedGroups struct {
	path string

	mu struct {
		sync.Mutex // held while the file is written
		numbers    map[uint32]struct{}
	}
}

// openedRecord is the content of the file. Groups is ascending, without duplicates.
type openedRecord struct {
	Format int      `json:"format"` // openedFormat
	Groups []uint32 `json:"groups"`
}

// parseOpened parses the JSON object that writeLocked writes. Every error is ErrBadIdentity.
func parseOpened(raw []byte) ([]uint32, error) {
	var r openedRecord
	if err := strictJSON(raw, openedBytesMax, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadIdentity, err)
	}
	if r.Format != openedFormat {
		return nil, fmt.Errorf("format %d, not %d: %w", r.Format, openedFormat, ErrBadIdentity)
	}
	for i := 1; i < len(r.Groups); i++ {
		if r.Groups[i] <= r.Groups[i-1] {
			return nil, fmt.Errorf("groups not ascending: %w", ErrBadIdentity)
		}
	}
	return r.Groups, nil
}

// loadOpened reads the set in dir. If made is set, dir is already the directory of a node, so the
// file must exist. Otherwise a missing file means an empty set, and the method write creates the
// file.
func loadOpened(dir string, made bool) (*openedGroups, error) {
	o := &openedGroups{path: filepath.Join(dir, openedFile)}
	o.mu.numbers = map[uint32]struct{}{}
	raw, err := readChecked(o.path, openedBytesMax)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !made:
		return o, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%q: %w", dir, ErrGroupsLost)
	case err != nil:
		return nil, fmt.Errorf("cannot read the groups' record: %w", err)
	}
	groups, err := parseOpened(raw)
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", o.path, err)
	}
	for _, n := range groups {
		o.mu.numbers[n] = struct{}{}
	}
	return o, nil
}

// GroupOpened durably adds a group. Call it once the group's log is on disk, before the replica
// votes or acknowledges anything.
func (o *openedGroups) GroupOpened(number uint32) error { return o.set(number, true) }

// GroupRemoved durably removes a group. Call it after the group's directory was renamed, and before
// its files are deleted.
func (o *openedGroups) GroupRemoved(number uint32) error { return o.set(number, false) }

// WasOpened reports whether the set has a group.
func (o *openedGroups) WasOpened(number uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.mu.numbers[number]
	return ok
}

func (o *openedGroups) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.numbers)
}

// set durably adds a number to the set, or removes it. After an error the set in memory is
// unchanged, but the file may have changed.
func (o *openedGroups) set(number uint32, in bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, has := o.mu.numbers[number]; has == in {
		return nil
	}
	before := maps.Clone(o.mu.numbers)
	if in {
		o.mu.numbers[number] = struct{}{}
	} else {
		delete(o.mu.numbers, number)
	}
	if err := o.writeLocked(); err != nil {
		o.mu.numbers = before
		return err
	}
	return nil
}

func (o *openedGroups) write() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writeLocked()
}

func (o *openedGroups) writeLocked() error {
	r := openedRecord{Format: openedFormat, Groups: slices.Sorted(maps.Keys(o.mu.numbers))}
	if r.Groups == nil {
		r.Groups = []uint32{}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot encode the groups' record: %w", err)
	}
	if err := replaceChecked(o.path, append(raw, '\n')); err != nil {
		return fmt.Errorf("cannot write the groups' record: %w", err)
	}
	return nil
}
