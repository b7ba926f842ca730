package members

import (
	"bytes"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// When Pebble merges files, it may find damage that no reader has found. It then reports the file,
// with its first and last key. Several groups may have keys in that range, and perhaps none of the
// damaged keys is in use. So each of these groups is a suspect until a Scrub shows whether it is
// damaged.

// suspect is an opened group, with whether it needs a Scrub.
type suspect struct {
	group *Group
	fresh bool // damage that may affect the group was found since the last TakeSuspicion
}

// openLocked adds a group to the list of opened groups. If damage was found before, the group may
// be a suspect at once.
func (s *Store) openLocked(g *Group) {
	delete(s.mu.unopened, g.number)
	s.mu.groups[g.number] = &suspect{g, slices.ContainsFunc(s.mu.files, func(f *damagedFile) bool {
		return s.mayHold(f.Bounds.Start, f.Bounds.End.Key, g.number)
	})}
}

// noteDamage makes suspects of the groups that may have keys in a damaged file. Pebble may report
// the same file many times; only the first report makes suspects. Every read may find damage, so
// the caller may hold any lock except Store.mu.
func (s *Store) noteDamage(info pebble.DataCorruptionInfo) {
	s.damaged.Add(1)
	s.unreadable(info.Path, info.Details)
	var numbers []uint32
	s.mu.Lock()
	at := slices.IndexFunc(s.mu.files, func(of *damagedFile) bool {
		return of.Path == info.Path && bytes.Equal(of.Bounds.Start, info.Bounds.Start) && bytes.Equal(of.Bounds.End.Key, info.Bounds.End.Key)
	})
	known := at >= 0
	if known {
		s.mu.files[at].met = true
	} else {
		s.mu.files = append(s.mu.files, &damagedFile{DataCorruptionInfo: info, loaded: map[uint32]bool{}, met: true})
	}
	for number, of := range s.mu.groups {
		if s.mayHold(info.Bounds.Start, info.Bounds.End.Key, number) {
			numbers = append(numbers, number)
			of.fresh = of.fresh || !known
		}
	}
	s.mu.Unlock()
	slices.Sort(numbers)
	s.db.Limited().Error("members are damaged on disk", "file", info.Path, "groups", numbers, "err", info.Details.Error())
}

// suspect makes a Scrub of a group run, which returns ErrDamaged if its sets are damaged.
func (s *Store) suspect(number uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.mu.groups[number]; of != nil {
		of.fresh = true
	}
}

// knowsDamage reports whether the store has a file that was found damaged.
func (s *Store) knowsDamage() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.files) > 0
}

// mayHold reports whether a group may have keys from first to last. If last is nil, the keys are
// unknown, and mayHold returns true.
func (s *Store) mayHold(first, last []byte, number uint32) bool {
	if last == nil {
		return true
	}
	var all [][]byte
	for _, kind := range kinds {
		all = append(all, groupPrefix(kind, number))
	}
	for _, n := range s.homes.of(number) {
		for _, kind := range pairKinds {
			all = append(all, home(n).kind(kind))
		}
	}
	return slices.ContainsFunc(all, func(prefix []byte) bool {
		return bytes.Compare(first, scarce.PrefixEnd(prefix)) < 0 && bytes.Compare(last, prefix) >= 0
	})
}

// TakeSuspicion reports whether the group became a suspect since the last call.
func (g *Group) TakeSuspicion() bool {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.mu.groups[g.number]
	if of == nil || of.group != g || !of.fresh {
		return false
	}
	of.fresh = false
	return true
}
