package members

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine/pebbledb"
)

// Pebble never drops a damaged file by itself. It cannot merge the file with others. A read of keys beside
// the damaged block reads that block too, even if its sets were replaced. So the store replaces the whole key
// span of a damaged file by the data in that span that is in use, in one step of Pebble (an ingest with an
// excise). No readable data is lost:
//
//   - A file stays while it has sets in use that cannot be read, unless another replica has
//     them: the sets of a group that begins a Load, or began one since the file was found damaged.
//   - The store first gives these sets up durably: the state of the group becomes a mark (no bytes), and
//     the group refuses all calls until the next Switch.
//   - No write runs meanwhile (Store.writes). An open iterator keeps the files that it
//     reads. A later iterator finds the same keys. Nobody opens an iterator during the
//     exchange (Store.excising). A Pebble snapshot does not keep files, so the store releases the captured
//     views, and a Scrub starts again.
//   - If a file crosses an end of the span, Pebble reads which keys remain in it, and treats a read
//     error as the end of the file. Such a file was read whole before, or is new. If it cannot be
//     read now, the process ends before Pebble writes its list of files (Store.cutting).

// discardKeysMax bounds the keys that Discard rewrites, and so the delay of writes. A file of fileBytes has
// up to three million keys.
const discardKeysMax = 12 << 20

// discardAgainAfter is the least time between two attempts of Discard at the same file.
const discardAgainAfter = 10 * time.Minute

// rewrittenName is the name of the rewritten file until Pebble ingests it.
const rewrittenName = "rewritten.tmp"

// damagedFile is a file that Pebble found damaged.
type damagedFile struct {
	pebble.DataCorruptionInfo
	loaded map[uint32]bool // groups that began a Load since, so another replica has their sets
	met    bool            // Pebble found the damage, or found it again, since Discard tried
	tried  time.Time       // last attempt of Discard
}

// overlaps reports whether the file may have keys of a span.
func (f *damagedFile) overlaps(span pebble.KeyRange) bool {
	return f.Bounds.End.Key == nil || bytes.Compare(f.Bounds.Start, span.End) < 0 && bytes.Compare(f.Bounds.End.Key, span.Start) >= 0
}

// Discard removes the damaged files that Pebble has found, or found again, since the last attempt, if all data
// in use in them is readable.
func (s *Store) Discard() {
	done, err := s.db.Use()
	if err != nil {
		return
	}
	defer done()
	s.discard(nil, func(f *damagedFile) bool {
		due := f.met && time.Since(f.tried) > discardAgainAfter
		if due {
			f.met, f.tried = false, time.Now()
		}
		return due
	})
}

// discardFor removes the damaged files that may have keys of a group whose sets are about to be replaced. The
// caller has called Use.
func (s *Store) discardFor(g *Group) {
	s.discard(g, func(f *damagedFile) bool {
		concerned := f.mayHold(g.number)
		if concerned {
			f.loaded[g.number] = true
		}
		return concerned
	})
}

func (s *Store) discard(loading *Group, which func(*damagedFile) bool) {
	s.mu.Lock()
	var files []*damagedFile
	for _, f := range s.mu.files {
		if which(f) && len(f.Bounds.Start) > 0 && len(f.Bounds.End.Key) > 0 {
			files = append(files, f)
		}
	}
	s.mu.Unlock()
	for _, f := range files {
		s.mu.Lock()
		gone := !slices.Contains(s.mu.files, f) // removed together with an earlier file
		s.mu.Unlock()
		if gone {
			continue
		}
		if err := s.discardFile(f, loading); err != nil {
			s.cfg.Logger.Warn("a damaged file of members stays", "file", f.Path, "err", err.Error())
		}
	}
}

// discardFile replaces the span of a damaged file by the data in it that is in use.
func (s *Store) discardFile(f *damagedFile, loading *Group) error {
	s.writes.Lock()
	defer s.writes.Unlock()
	span, err := s.spanOf(f)
	if err != nil {
		return err
	}
	r, err := s.rewrite(span, loading)
	if err != nil {
		return err
	}
	for _, g := range r.lost {
		if err := s.giveUp(g, loading); err != nil {
			return err
		}
	}
	s.discards.Add(1) // before the keys go: a Scrub that misses keys checks whether the counter rose
	if err := s.db.Flush(); err != nil {
		return err
	}
	if err := s.excise(r, span); err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.files = slices.DeleteFunc(s.mu.files, func(f *damagedFile) bool {
		return len(f.Bounds.Start) > 0 && within(span, f.Bounds.Start, f.Bounds.End.Key)
	})
	s.mu.Unlock()
	for _, g := range s.groups() {
		g.mu.Lock()
		g.releaseLocked(func(*View) bool { return true })
		g.mu.Unlock()
		g.fillAgain()
	}
	s.cfg.Logger.Info("a damaged file of members was removed", "file", f.Path, "kept_keys", r.keys, "groups_given_up", len(r.lost))
	return nil
}

func (s *Store) excise(r *rewriting, span pebble.KeyRange) error {
	s.excising.Lock()
	defer s.excising.Unlock()
	uncut, err := s.uncut(span)
	if err != nil {
		return err
	}
	s.cutting.Store(&uncut)
	defer s.cutting.Store(nil)
	if r.keys == 0 {
		return s.db.Excise(context.Background(), span)
	}
	_, err = s.db.IngestAndExcise(context.Background(), []string{r.path}, nil, nil, span)
	return err
}

// cut returns the greatest key up to the given key at which Pebble can cut files. Such a key is a prefix for
// filters, see comparer.
func cut(key []byte) []byte {
	if kind := key[0]; len(key) > listBytes && (kind == keyMember || kind == keyTime || kind == keyOf) {
		key = key[:listBytes]
	}
	return bytes.Clone(key)
}

// spanOf returns the span of a damaged file, widened by each damaged file that crosses an end of the span.
// When Pebble excises a span, it cuts the files that cross an end. If it cannot read a file that it cuts, it
// silently drops the rest of that file.
func (s *Store) spanOf(f *damagedFile) (pebble.KeyRange, error) {
	span := cutAround(f.Bounds.Start, f.Bounds.End.Key)
	for {
		wider, err := s.widened(span)
		if err != nil || bytes.Equal(wider.Start, span.Start) && bytes.Equal(wider.End, span.End) {
			return span, err
		}
		span = wider
	}
}

// cutAround returns the smallest span that contains the keys from first to last and at whose ends Pebble can
// cut files.
func cutAround(first, last []byte) pebble.KeyRange {
	return pebble.KeyRange{Start: cut(first), End: pebbledb.After(cut(last))}
}

// within reports whether the keys from first to last are in a span.
func within(span pebble.KeyRange, first, last []byte) bool {
	return bytes.Compare(first, span.Start) >= 0 && bytes.Compare(last, span.End) < 0
}

// widened returns the smallest span that contains the span and each damaged file that crosses one of its
// ends.
func (s *Store) widened(span pebble.KeyRange) (pebble.KeyRange, error) {
	across, err := s.across(span)
	if err != nil {
		return span, err
	}
	wider := span
	for _, file := range across {
		switch err := s.checkFile(file.path); {
		case errors.Is(err, ErrDamaged):
			of := cutAround(file.first, file.last)
			wider.Start = slices.MinFunc([][]byte{wider.Start, of.Start}, bytes.Compare)
			wider.End = slices.MaxFunc([][]byte{wider.End, of.End}, bytes.Compare)
		case err != nil:
			return span, fmt.Errorf("cannot read a file beside it: %w", err)
		}
	}
	return wider, nil
}

// cutFile is a file that Pebble cuts because it has keys on both sides of an end of a span.
type cutFile struct {
	path        string
	first, last []byte // of its keys
}

// across returns the files that have keys on both sides of an end of a span.
func (s *Store) across(span pebble.KeyRange) (files []cutFile, err error) {
	levels, err := s.db.SSTables(pebble.WithKeyRangeFilter(span.Start, span.End))
	for _, file := range slices.Concat(levels...) {
		if !within(span, file.Smallest.UserKey, file.Largest.UserKey) {
			path := s.cfg.FS.PathJoin(s.cfg.Dir, file.BackingSSTNum.String()+".sst")
			files = append(files, cutFile{path, file.Smallest.UserKey, file.Largest.UserKey})
		}
	}
	return files, err
}

// uncut returns the paths of the files that Pebble does not cut when it excises the span.
func (s *Store) uncut(span pebble.KeyRange) (map[string]bool, error) {
	levels, err := s.db.SSTables()
	if err != nil {
		return nil, err
	}
	paths := map[string]bool{}
	for _, file := range slices.Concat(levels...) {
		paths[s.cfg.FS.PathJoin(s.cfg.Dir, file.BackingSSTNum.String()+".sst")] = true
	}
	across, err := s.across(span)
	for _, file := range across {
		delete(paths, file.path)
	}
	return paths, err
}

// unreadable ends the process if Pebble may be cutting a file that cannot be read, because Pebble may be
// about to drop the rest of that file. A merge may have ended since uncut listed the files, so Pebble may cut
// any new file. A file that uncut listed does not count: a reader may find it damaged meanwhile.
func (s *Store) unreadable(path string, err error) {
	if uncut := s.cutting.Load(); uncut != nil && !(*uncut)[path] {
		s.cfg.Fatal(fmt.Errorf("cannot read members in %s while a damaged file beside it is removed: %w", path, err))
	}
}

// checkFile reads a file whole.
func (s *Store) checkFile(path string) error {
	f, err := s.cfg.FS.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, s.fileOptions().MakeReaderOptions())
	if err != nil {
		return errors.Join(damaged(err), readable.Close())
	}
	return errors.Join(damaged(r.ValidateBlockChecksums()), r.Close())
}

// fileOptions returns options for files outside of the store.
func (s *Store) fileOptions() *pebble.Options {
	o := s.options()
	o.EnsureDefaults()
	return o
}

// groups returns the groups that were opened and not dropped. Some may be closed.
func (s *Store) groups() (all []*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.mu.groups {
		all = append(all, of.group)
	}
	return all
}

// giveUp makes a group refuse all calls until its sets are replaced.
func (s *Store) giveUp(g, loading *Group) error {
	if err := s.db.Set(full(groupPrefix(keyState, g.number)), nil, pebble.Sync); err != nil {
		return err
	}
	g.reading.Lock()
	g.broken = fmt.Errorf("%w: they were in a file that is removed", ErrDamaged)
	g.reading.Unlock()
	g.known.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.mu.groups[g.number]; of != nil && g != loading {
		of.fresh = true // so that a Scrub follows, which returns ErrDamaged
	}
	return nil
}

// holder is a group that has keys in the store.
type holder struct {
	number      uint32
	generations []uint32 // generations in use: the group's own, and that of a Load under way
	group       *Group   // nil if the group was not opened
}

// holders returns the groups that may have keys in use, ascending. It reads from disk the groups that were not
// opened since Open.
func (s *Store) holders() ([]holder, error) {
	byNumber := map[uint32]holder{}
	err := each(s.present(), []byte{keyState}, func(key, value []byte) (bool, error) {
		h := holder{number: binary.BigEndian.Uint32(key[1:])}
		if len(value) >= 4 { // the group was not given up
			h.generations = []uint32{binary.BigEndian.Uint32(value)}
		}
		byNumber[h.number] = h
		return true, nil
	})
	for _, g := range s.groups() {
		h := holder{g.number, []uint32{g.Generation()}, g}
		if g.loading.Load() { // otherwise nobody reads the leftovers of an abandoned Load
			h.generations = append(h.generations, h.generations[0]+1)
		}
		byNumber[g.number] = h
	}
	if err != nil && s.allOpened() {
		err = nil // all groups are open: each knows its generation or is unusable, and rewriting.holder fails for an unusable one
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

// If a group has sets that cannot be read, replaceable reports whether another replica has them.
// That is so if the group begins a Load, or began one after the last of the relevant damaged files
// was found. An older Load proves nothing: this replica may have been the only one with the sets
// since.
func (r *rewriting) replaceable(g *Group) bool {
	if g == nil || g == r.loading {
		return g != nil
	}
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	loaded := false
	for _, f := range s.mu.files {
		if f.overlaps(r.span) && f.mayHold(g.number) {
			if loaded = f.loaded[g.number]; !loaded {
				return false
			}
		}
	}
	return loaded
}

// rewriting copies the data in use of a key span to a file outside of the store.
type rewriting struct {
	store   *Store
	loading *Group // the group that begins a Load; nil for none
	span    pebble.KeyRange
	path    string
	to      *sstable.Writer // nil to count only
	keys    int
	lost    map[uint32]*Group // groups that another replica has and that are unreadable in the span
}

// rewrite writes all data in use of a span to a file, if it can read all of it.
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

// all copies the keys in their order.
func (r *rewriting) all(holders []holder) error {
	for _, kind := range [...]byte{keyDead, keyMember, keyOutcome, keyOf, keyState, keyTime} {
		for _, h := range holders {
			err := r.holder(kind, h)
			switch {
			case errors.Is(err, ErrDamaged) && r.to == nil && r.replaceable(h.group):
				r.lost[h.number] = h.group
			case err != nil:
				return fmt.Errorf("group %d: %w", h.number, err)
			}
		}
	}
	return nil
}

// holder copies the keys of one kind of a group. If the group is given up, holder copies only the keys of a
// Load under way: Switch does not read these again, so they must stay.
func (r *rewriting) holder(kind byte, h holder) error {
	if kind == keyState {
		return r.state(h)
	}
	if r.lost[h.number] != nil {
		if !h.group.loading.Load() {
			return nil
		}
		h.generations = h.generations[1:]
	} else if h.group != nil && mayHold(r.span.Start, r.span.End, h.number) {
		if err := h.group.usable(); err != nil {
			return err // the generation on disk is unknown
		}
	}
	for _, generation := range h.generations {
		if err := r.prefix(prefix{h.number, generation}.kind(kind)); err != nil {
			return err
		}
	}
	return nil
}

// state copies the state of a group, or the mark that it was given up. It uses a lookup, because an iterator
// also reads older states, which may be in the damaged block.
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
	from, to := slices.MaxFunc([][]byte{prefix, r.span.Start}, bytes.Compare), slices.MinFunc([][]byte{pebbledb.After(prefix), r.span.End}, bytes.Compare)
	if bytes.Compare(from, to) >= 0 {
		return nil
	}
	var failed error // an error other than that of a read
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
