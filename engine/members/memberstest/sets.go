// Package memberstest holds sets of members in memory, for tests: as a fake node, and as the
// expected answers of a real one.
package memberstest

import (
	"cmp"
	"slices"

	"github.com/countd/countd/engine/members"
)

// Sets are the sets of one column. The zero value has no members. It has no lock.
type Sets struct {
	pairs map[pair]members.Stamp
	last  members.Stamp
}

type pair struct{ id, member uint64 }

// Join adds a member, later than all before, and reports whether it was absent.
func (s *Sets) Join(id, member uint64) bool {
	if _, in := s.pairs[pair{id, member}]; in {
		return false
	}
	if s.pairs == nil {
		s.pairs = map[pair]members.Stamp{}
	}
	s.last = max(s.last+1, members.StampOf(1763812800000)) // 2025-11-22T12:00:00Z
	s.pairs[pair{id, member}] = s.last
	return true
}

// Leave removes a member and reports whether it was there.
func (s *Sets) Leave(id, member uint64) bool {
	_, in := s.pairs[pair{id, member}]
	delete(s.pairs, pair{id, member})
	return in
}

// Delete removes all members of a row.
func (s *Sets) Delete(id uint64) {
	for p := range s.pairs {
		if p.id == id {
			delete(s.pairs, p)
		}
	}
}

// In reports whether a member is in the set of a row.
func (s *Sets) In(id, member uint64) bool {
	_, in := s.pairs[pair{id, member}]
	return in
}

// List returns a page of the members of a row.
func (s *Sets) List(id uint64, page members.Page) members.List {
	var all []members.Entry
	for p, at := range s.pairs {
		if p.id == id {
			all = append(all, members.Entry{ID: p.member, At: at})
		}
	}
	return paged(all, page)
}

// Of returns a page of the rows that a member is in.
func (s *Sets) Of(member uint64, page members.Page) members.List {
	var all []members.Entry
	for p, at := range s.pairs {
		if p.member == member {
			all = append(all, members.Entry{ID: p.id, At: at})
		}
	}
	return paged(all, page)
}

func paged(all []members.Entry, page members.Page) members.List {
	order := func(a, b members.Entry) int { return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.ID, b.ID)) }
	slices.SortFunc(all, order)
	all = slices.DeleteFunc(all, func(e members.Entry) bool { return page.Continues && order(e, page.After) <= 0 })
	n := min(page.Limit, len(all))
	return members.List{Entries: all[:n:n], More: n < len(all)}
}
