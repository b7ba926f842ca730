package shard

import "github.com/countd/countd/engine/members"

// MemberReads reads the sets of members of counter keyspaces. Ids, members and columns
// are as in a Write.
type MemberReads interface {
	// Check fills in, len(ids) values: whether the member is in the set of each id.
	Check(ks *Keyspace, column int, member uint64, ids []uint64, opt *ReadOptions, in []bool) error
	// List returns a page of the members of a row, newest first.
	List(ks *Keyspace, column int, id uint64, page members.Page, opt *ReadOptions) (members.List, error)
	// Of returns a page of the rows that a member is in, newest first.
	Of(ks *Keyspace, column int, member uint64, page members.Page, opt *ReadOptions) (members.List, error)
}
