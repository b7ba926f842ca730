package shard

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/engine/members"
)

// MemberReads reads the sets of members of counter keyspaces. Ids, members and columns are those of a
// Write.
type MemberReads interface {
	// Check sets contained[i] to whether the member is in the set of ids[i].
	Check(ks *Keyspace, column int, member uint64, ids []uint64, opt *ReadOptions, contained []bool) error
	// List returns a page of the members of a row, newest first.
	List(ks *Keyspace, column int, id uint64, page members.Page, opt *ReadOptions) (members.List, error)
	// Of returns a page of the rows that a member is in, newest first.
	Of(ks *Keyspace, column int, member uint64, page members.Page, opt *ReadOptions) (members.List, error)
}

// Check implements MemberReads.
func (rd *reader) Check(ks *Keyspace, column int, member uint64, ids []uint64, opt *ReadOptions, contained []bool) error {
	clear(contained)
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return rd.orUnknown(ks, err)
	}
	pg := newPage(readContains, ids, 1, groups[0].route)
	defer pg.release()
	pg.sets = setQuery{column: uint8(column), member: member}
	if err := rd.readSets(ks, pg, groups, opt); err != nil {
		return err
	}
	for s := range pg.byShard {
		for i, place := range pg.byShard[s].at {
			contained[place] = pg.byShard[s].rows[i] != 0
		}
	}
	return nil
}

// List implements MemberReads.
func (rd *reader) List(ks *Keyspace, column int, id uint64, page members.Page, opt *ReadOptions) (members.List, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return members.List{}, rd.orUnknown(ks, err)
	}
	pg := newPage(readMembers, []uint64{id}, 0, groups[0].route)
	defer pg.release()
	pg.sets = setQuery{column: uint8(column), page: page}
	if err := rd.readSets(ks, pg, groups, opt); err != nil {
		return members.List{}, err
	}
	s, _ := groups[0].route.KeyOf(id)
	return listOf(pg.byShard[s].rows), nil
}

// Of implements MemberReads. It merges a page from each shard.
func (rd *reader) Of(ks *Keyspace, column int, member uint64, page members.Page, opt *ReadOptions) (members.List, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return members.List{}, rd.orUnknown(ks, err)
	}
	route := groups[0].route
	pg := newPage(readRows, nil, 0, route)
	defer pg.release()
	pg.sets = setQuery{column: uint8(column), page: page}
	for s := range groups {
		p := &pg.byShard[s]
		p.keys, p.after = append(p.keys, member), members.Entry{}
		if page.Continues {
			key, above := route.FirstAbove(page.After.ID, s)
			if p.after = (members.Entry{ID: key, At: page.After.At}); !above { // the shard has no further row with the same stamp
				p.after = members.Entry{At: page.After.At - 1}
			}
		}
	}
	if err := rd.readSets(ks, pg, groups, opt); err != nil {
		return members.List{}, err
	}
	var all members.List
	for s := range pg.byShard {
		list := listOf(pg.byShard[s].rows)
		for _, e := range list.Entries {
			all.Entries = append(all.Entries, members.Entry{ID: route.IDOf(s, e.ID), At: e.At})
		}
		all.More = all.More || list.More
	}
	slices.SortFunc(all.Entries, members.Entry.Compare)
	if len(all.Entries) > page.Limit {
		all.Entries, all.More = all.Entries[:page.Limit], true
	}
	return all, nil
}

// readSets reads the shards that the page has keys of.
func (rd *reader) readSets(ks *Keyspace, pg *page, groups []*shardReplica, opt *ReadOptions) error {
	if failed := rd.readShards(pg, groups, opt, time.Now()); failed != nil {
		return rd.orUnknown(ks, errors.Join(failed.ByShard...))
	}
	return nil
}
