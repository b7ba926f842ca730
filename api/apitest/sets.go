package apitest

import (
	"maps"
	"slices"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
)

// NodeSets holds the sets of all columns of a fake node. The zero value has no members. It is not
// safe for concurrent use.
type NodeSets struct{ columns map[column]*Sets }

type column struct {
	keyspace string
	number   int
}

// Of returns the sets of a column.
func (n *NodeSets) Of(keyspace string, number int) *Sets {
	if n.columns == nil {
		n.columns = map[column]*Sets{}
	}
	c := column{keyspace, number}
	if n.columns[c] == nil {
		n.columns[c] = &Sets{}
	}
	return n.columns[c]
}

// Answer stores the result of a query of sets in the query.
func (n *NodeSets) Answer(keyspace string, query raftfsm.Query, ids []uint64) {
	switch q := query.(type) {
	case *counters.ContainsQuery:
		for i, id := range ids {
			q.In[i] = n.Of(keyspace, int(q.Column)).In(id, q.Member)
		}
	case *counters.MembersQuery:
		q.List = n.Of(keyspace, int(q.Column)).List(ids[0], q.Page)
	case *counters.RowsOfMemberQuery:
		q.List = n.Of(keyspace, int(q.Column)).Of(q.Member, q.Page)
	}
}

// Sets holds the sets of one column. The zero value has no members.
type Sets struct {
	pairs map[pair]members.Stamp
	last  members.Stamp
}

type pair struct{ id, member uint64 }

// Join adds a member with a later stamp than all others, and reports whether the member was absent.
func (s *Sets) Join(id, member uint64) bool {
	if s.In(id, member) {
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
	in := s.In(id, member)
	delete(s.pairs, pair{id, member})
	return in
}

// Delete removes all members of a row.
func (s *Sets) Delete(id uint64) {
	maps.DeleteFunc(s.pairs, func(p pair, _ members.Stamp) bool { return p.id == id })
}

// In reports whether a member is in the set of a row.
func (s *Sets) In(id, member uint64) bool {
	_, in := s.pairs[pair{id, member}]
	return in
}

// List returns a page of the members of a row.
func (s *Sets) List(id uint64, page members.Page) members.List {
	return s.paged(page, func(p pair) (uint64, bool) { return p.member, p.id == id })
}

// Of returns a page of the rows that a member is in.
func (s *Sets) Of(member uint64, page members.Page) members.List {
	return s.paged(page, func(p pair) (uint64, bool) { return p.id, p.member == member })
}

// paged returns a page of a list. For each pair, idOf returns the id to list, and whether to list
// it.
func (s *Sets) paged(page members.Page, idOf func(pair) (id uint64, listed bool)) members.List {
	var all []members.Entry
	for p, at := range s.pairs {
		e := members.Entry{At: at}
		var listed bool
		if e.ID, listed = idOf(p); listed && (!page.Continues || e.Compare(page.After) > 0) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, members.Entry.Compare)
	n := min(page.Limit, len(all))
	return members.List{Entries: all[:n:n], More: n < len(all)}
}
