package members

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/countd/countd/internal/scarce"
)

// Pebble never drops a damaged file by itself. It cannot merge the file with other files. A read of
// keys beside the damaged block reads that block too, even if the sets in it were replaced. So the
// store copies all data that is in use in the key span of a damaged file to a new file. Pebble then
// replaces the span by the new file in one step, an ingest with an excise. No readable data is
// lost:
//
//   - A file with unreadable sets in use stays unless another replica has these sets. Another
//     replica certainly has them if the group begins a Load now, or began one after the file was
//     found damaged.
//   - The store first gives up the unreadable sets durably: the state of the group becomes a mark (no
//     bytes), and the group refuses all calls until the next Switch.
//   - No write runs meanwhile (Store.writes). An open iterator keeps the files that it reads, and a
//     later iterator finds the same keys. Nobody opens an iterator during the exchange
//     (Store.excising). A Pebble snapshot does not keep files, so the store releases the captured
//     views, and a Scrub starts again.
//   - If a file crosses an end of the span, Pebble reads which of its keys remain, and treats a
//     read error as the end of the file. Therefore the store first reads such files whole, and
//     removes damaged ones together with the span. If a file still cannot be read during the
//     exchange, the process ends before Pebble stores the new list of files (Store.cutting).

// discardAgainAfter is the least time between two attempts of Discard at the same file.
const discardAgainAfter = 10 * time.Minute

// damagedFile is a file that Pebble found damaged.
type damagedFile struct {
	pebble.DataCorruptionInfo
	loaded map[uint32]bool // groups that began a Load since, so that another replica has their sets
	met    bool            // Pebble found the damage since the last attempt of Discard
	tried  time.Time       // last attempt of Discard
}

// overlaps reports whether the file may have keys of a span.
func (f *damagedFile) overlaps(span pebble.KeyRange) bool {
	return f.Bounds.End.Key == nil || bytes.Compare(f.Bounds.Start, span.End) < 0 && bytes.Compare(f.Bounds.End.Key, span.Start) >= 0
}

// Discard tries to remove the damaged files that Pebble has found, or found again, since the last
// attempt. A file stays if data in use in it cannot be read.
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
		concerned := s.mayHold(f.Bounds.Start, f.Bounds.End.Key, g.number)
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
		gone := !slices.Contains(s.mu.files, f) // removed together with a previous file
		s.mu.Unlock()
		if gone {
			continue
		}
		if err := s.discardFile(f, loading); err != nil {
			s.cfg.Logger.Warn("a damaged file of members stays", "file", f.Path, "err", err.Error())
		}
	}
}

// discardFile replaces all keys in the span of a damaged file by those in use.
func (s *Store) discardFile(f *damagedFile, loading *Group) error {
	s.writes.Lock()
	defer s.writes.Unlock()
	span, err := s.spanOf(f)
	if err != nil {
		return err
	}
	if err := s.endPartings(span); err != nil {
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
	s.discards.Add(1) // before the keys go: a Scrub that misses keys checks this counter
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

// endPartings ends the Partings of the groups that may have keys in a span. The caller has locked writes.
func (s *Store) endPartings(span pebble.KeyRange) error {
	batch := s.db.NewBatch()
	defer batch.Close()
	var errs []error
	for _, g := range s.groups() {
		if s.mayHold(span.Start, span.End, g.number) {
			g.stepping.Lock()
			errs = append(errs, g.endParting(batch))
			g.stepping.Unlock()
		}
	}
	return errors.Join(append(errs, batch.Commit(pebble.NoSync))...)
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

// cut returns the greatest key that is not above the given key, and at which Pebble can cut files.
// Pebble can cut files at prefixes as defined by comparer.
func cut(key []byte) []byte {
	if kind := key[0]; len(key) > listBytes && (kind == keyMember || kind == keyTime || kind == keyOf) {
		key = key[:listBytes]
	}
	return bytes.Clone(key)
}

// spanOf returns the key span of a damaged file, widened until no damaged file crosses one of its
// ends. When Pebble excises a span, it cuts the files that cross an end. If Pebble cannot read such
// a file, it silently drops the rest of the file.
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

// cutAround returns the smallest span that contains the keys from first to last, with ends at which
// Pebble can cut files.
func cutAround(first, last []byte) pebble.KeyRange {
	return pebble.KeyRange{Start: cut(first), End: scarce.PrefixEnd(cut(last))}
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

// cutFile is a file that has keys inside and outside of a span.
type cutFile struct {
	path        string
	first, last []byte // its lowest and highest key
}

// across returns the files that have keys inside and outside of a span.
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

// unreadable is called when a file cannot be read. It ends the process if Pebble may be cutting
// that file, because Pebble would drop the rest of it. During an excise, Pebble may be cutting
// every file except those that uncut listed, even a file that a merge has created since.
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

// fileOptions returns the options for reading and writing a single file.
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

// giveUp makes a group refuse all calls until a Load replaces its sets.
func (s *Store) giveUp(g, loading *Group) error {
	if err := s.db.Set(full(groupPrefix(keyState, g.number)), nil, pebble.Sync); err != nil {
		return err
	}
	g.reading.Lock()
	g.broken = fmt.Errorf("%w: they were in a file that is removed", ErrDamaged)
	g.reading.Unlock()
	g.known.forget()
	if g != loading {
		s.suspect(g.number)
	}
	return nil
}
