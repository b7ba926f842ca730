package members

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/scarce"
)

// discardKeysMax bounds the keys that Discard rewrites, and so the delay of writes. A file of fileBytes has
// up to three million keys.
const discardKeysMax = 12 << 20

// rewrittenName is the name of the rewritten file until Pebble ingests it.
const rewrittenName = "rewritten.tmp"

// holder is a group that may have keys in the store.
type holder struct {
	number      uint32
	generations []uint32 // generations in use: that of the group, and that of a running Load
	recorded    bool     // the group may have records
	own         bool     // there may be pairs in use under the first generation: see Group
	group       *Group   // nil if the group was not opened
}

// place is a prefix in use.
type place struct {
	prefix
	of holder
}

// places returns the prefixes under which holders have keys of a kind in use, ascending. Of a group that is to be given
// up, only the keys of a running Load stay, because Switch does not load them again.
func (r *rewriting) places(kind byte, holders []holder) (all []place) {
	for _, h := range holders {
		homes := r.store.homes.of(h.number)
		switch {
		case kind == keyRecord && !h.recorded:
			continue
		case r.lost[h.number] != nil && !h.group.loading.Load():
			continue
		case r.lost[h.number] != nil:
			h.generations, homes = h.generations[1:], nil
		}
		pairs := slices.Contains(pairKinds[:], kind)
		for i, n := range h.generations {
			if !pairs || h.own || i > 0 || r.lost[h.number] != nil {
				all = append(all, place{prefix{h.number, n}, h})
			}
		}
		for _, n := range homes {
			if pairs {
				all = append(all, place{home(n), h})
			}
		}
	}
	slices.SortFunc(all, func(a, b place) int { return bytes.Compare(a.kind(kind), b.kind(kind)) })
	return all
}

// holders returns the groups that may have keys in use, ascending. For groups that were not opened
// yet, it reads the states from disk.
func (s *Store) holders() ([]holder, error) {
	byNumber := map[uint32]holder{}
	err := each(s.present(), []byte{keyState}, func(key, value []byte) (bool, error) {
		h := holder{number: binary.BigEndian.Uint32(key[1:])}
		if len(value) >= 4 { // shorter if the group was given up
			h.generations, h.recorded = []uint32{binary.BigEndian.Uint32(value)}, len(value) > 4+stateBytes
			found, err := parseGroupState(value)
			h.own = err != nil || found.ownPairs()
		}
		byNumber[h.number] = h
		return true, nil
	})
	for _, g := range s.groups() {
		g.reading.RLock()
		h := holder{number: g.number, generations: []uint32{g.log.generation}, recorded: g.recorded.Load(), own: g.own, group: g}
		g.reading.RUnlock()
		if g.loading.Load() { // the Load's generation; without a running Load, nobody reads that generation
			h.generations = append(h.generations, h.generations[0]+1)
		}
		byNumber[g.number] = h
	}
	if err == nil && !s.homes.known() {
		err = fmt.Errorf("%w: it is unknown which sets are in use", ErrDamaged)
	}
	if err != nil && s.allOpened() {
		err = nil // all groups are open, so their states on disk are not needed
	}
	return slices.SortedFunc(maps.Values(byNumber), func(a, b holder) int { return cmp.Compare(a.number, b.number) }), err
}

// allOpened reports whether all groups that may have sets on disk were opened.
func (s *Store) allOpened() bool {
	if s.cfg.Groups == nil {
		return false
	}
	all := s.cfg.Groups()
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(all, func(number uint32) bool { return s.mu.groups[number] == nil })
}

// replaceable reports whether another replica certainly has the sets of a group. That is so if the
// group begins a Load now, or began one after the last damaged file of this span was found. An
// older Load proves nothing: since then, the other replica may have lost the sets.
func (r *rewriting) replaceable(g *Group) bool {
	if g == nil || g == r.loading {
		return g != nil
	}
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	loaded := false
	for _, f := range s.mu.files {
		if f.overlaps(r.span) && s.mayHold(f.Bounds.Start, f.Bounds.End.Key, g.number) {
			if loaded = f.loaded[g.number]; !loaded {
				return false
			}
		}
	}
	return loaded
}

// rewriting copies the data in use in a key span to a new file, which is not yet part of the store.
type rewriting struct {
	store   *Store
	loading *Group // the group that begins a Load; nil if none does
	span    pebble.KeyRange
	path    string
	to      *sstable.Writer // if nil, keys are only counted
	keys    int
	lost    map[uint32]*Group // groups whose sets in the span cannot be read, but another replica has these sets
}

// rewrite writes all data in use in a span to a new file. It fails if it cannot read all of that
// data, apart from sets that another replica has.
func (s *Store) rewrite(span pebble.KeyRange, loading *Group) (*rewriting, error) {
	r := &rewriting{store: s, loading: loading, span: span, path: s.cfg.FS.PathJoin(s.cfg.Dir, rewrittenName), lost: map[uint32]*Group{}}
	holders, err := s.holders()
	if err != nil {
		return nil, err
	}
	if err := r.all(holders); err != nil || r.keys == 0 && len(r.lost) == 0 {
		return r, err
	}
	file, err := s.cfg.FS.Create(r.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	o := s.fileOptions()
	r.to, r.keys = sstable.NewWriter(objstorageprovider.NewFileWritable(file), o.MakeWriterOptions(len(o.Levels)-1, s.db.TableFormat())), 0
	err = r.all(holders)
	if failed := r.to.Close(); err == nil {
		err = failed
	}
	if err != nil || r.keys == 0 {
		err = errors.Join(err, s.cfg.FS.Remove(r.path))
	}
	return r, err
}

// all copies all keys in use, in ascending order.
func (r *rewriting) all(holders []holder) error {
	for _, kind := range kinds {
		if kind == keyState {
			for _, h := range holders {
				if err := r.failed(h, r.state(h)); err != nil {
					return err
				}
			}
			continue
		}
		for _, at := range r.places(kind, holders) {
			if err := r.failed(at.of, r.place(kind, at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// failed handles an error of a read of a group's keys. It returns nil if another replica has the sets of the group.
func (r *rewriting) failed(of holder, err error) error {
	switch {
	case errors.Is(err, ErrDamaged) && r.to == nil && r.replaceable(of.group):
		r.lost[of.number] = of.group
	case err != nil:
		return fmt.Errorf("group %d: %w", of.number, err)
	}
	return nil
}

// place copies the keys of one kind under a prefix.
func (r *rewriting) place(kind byte, at place) error {
	if g := at.of.group; g != nil && r.lost[g.number] == nil && r.store.mayHold(r.span.Start, r.span.End, g.number) {
		if err := g.usable(); err != nil {
			return err // it is unknown which of the group's generations is in use
		}
	}
	return r.prefix(at.kind(kind))
}

// state copies the state of a group; for a group in lost, it writes the mark. It uses Get instead
// of an iterator: an iterator would also read older states, which may be in the damaged block.
func (r *rewriting) state(h holder) error {
	key := full(groupPrefix(keyState, h.number))
	if bytes.Compare(key, r.span.Start) < 0 || bytes.Compare(key, r.span.End) >= 0 {
		return nil
	}
	var value []byte
	if r.lost[h.number] == nil {
		found, closer, err := r.store.present().Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return damaged(err)
		}
		value = bytes.Clone(found)
		if err := closer.Close(); err != nil {
			return err
		}
	}
	if r.keys++; r.to == nil {
		return nil
	}
	return r.to.Set(key, value)
}

// prefix copies the keys with a prefix that are in the span.
func (r *rewriting) prefix(prefix []byte) error {
	from, to := slices.MaxFunc([][]byte{prefix, r.span.Start}, bytes.Compare), slices.MinFunc([][]byte{scarce.PrefixEnd(prefix), r.span.End}, bytes.Compare)
	if bytes.Compare(from, to) >= 0 {
		return nil
	}
	var failed error // an error that is not from reading
	err := eachFrom(r.store.present(), from, to, func(key, value []byte) (bool, error) {
		if r.keys++; r.keys > discardKeysMax {
			failed = fmt.Errorf("more than %d of its keys are in use", discardKeysMax)
		} else if r.to != nil {
			failed = r.to.Set(key, value)
		}
		return failed == nil, nil
	})
	if failed != nil {
		return failed
	}
	return err
}
