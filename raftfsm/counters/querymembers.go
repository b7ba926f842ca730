package counters

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/wire"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

func setsOf(m raftfsm.Machine) (*members.Group, error) {
	c, is := m.(*Machine)
	switch {
	case !is:
		return nil, raftfsm.ErrOtherKind
	case c.Members() == nil:
		return nil, errors.New("the shard has no members")
	}
	return c.Members(), nil
}

// readSets calls read. It returns an ErrRoute if the sets on disk are those after a Split that the
// replica has yet to replay, before the read or after it. If the replica has replayed the Split
// meanwhile, its route has changed, and raftfsm.Answer refuses the read.
func readSets(m raftfsm.Machine, read func(*members.Group) error) error {
	sets, err := setsOf(m)
	if err != nil {
		return err
	}
	ahead := sets.SplitAfter(m.Applied())
	if !ahead {
		err = read(sets)
		ahead = sets.SplitAfter(m.Applied())
	}
	if ahead {
		return fmt.Errorf("%w: the members on disk are of a later route", codec.ErrRoute)
	}
	return err
}

// ContainsQuery reads for each id whether Member is in its set.
type ContainsQuery struct {
	raftfsm.Defaults
	Column uint8
	Member uint64
	In     []bool // the result for each id; allocated by the caller
}

// Number implements Query.
func (*ContainsQuery) Number() byte { return 3 }

// Limits implements Query.
func (*ContainsQuery) Limits(keys int) raftfsm.Limits {
	return raftfsm.Limits{Keys: raftfsm.ReadKeysMax, Alone: true, Bytes: 16 * keys, Answer: keys}
}

// Split implements Query.
func (q *ContainsQuery) Split(*raftfsm.Read) { clear(q.In) }

// Answer implements Query. A word is 1 if the member is in the set of the key, and otherwise 0.
// Answer may always read the disk, because sets are only there.
func (q *ContainsQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, _ bool, _ time.Time) error {
	in := make([]bool, len(p.Keys))
	err := readSets(m, func(sets *members.Group) error { return sets.Contains(q.Member, q.Column, p.Keys, in) })
	if err != nil {
		return err
	}
	p.Resize(len(p.Keys))
	for i, is := range in {
		p.Words[i] = int64(wire.Bit(is))
	}
	return nil
}

// Join implements Query.
func (q *ContainsQuery) Join(read *raftfsm.Read) bool {
	for s := range read.Parts {
		for i, word := range read.Parts[s].Words {
			q.In[read.Parts[s].At[i]] = word != 0
		}
	}
	return false
}

// AppendTo implements Query: column (1) | member (8).
func (q *ContainsQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, q.Column), q.Member)
}

func parseContainsQuery(r *wire.Reader) raftfsm.Query {
	return &ContainsQuery{Column: r.Byte(), Member: r.Fixed64()}
}

// ParseAnswer implements Query.
func (*ContainsQuery) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseWords(r, len(p.Keys))
}

// MembersQuery reads a page of the members of a row, newest first.
type MembersQuery struct {
	raftfsm.Defaults
	Column uint8
	Page   members.Page

	List members.List // the answer
}

// Number implements Query.
func (*MembersQuery) Number() byte { return 4 }

// Limits implements Query.
func (q *MembersQuery) Limits(int) raftfsm.Limits { return limitsOfList(&q.Page) }

// Answer implements Query. It may always read the disk, because sets are only there.
func (q *MembersQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, _ bool, _ time.Time) error {
	return readSets(m, func(sets *members.Group) (err error) {
		q.List, err = sets.Members(p.Keys[0], q.Column, q.Page)
		return err
	})
}

// AppendTo implements Query: column (1) | page.
func (q *MembersQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return appendPage(append(dst, q.Column), &q.Page)
}

func parseMembersQuery(r *wire.Reader) raftfsm.Query {
	return &MembersQuery{Column: r.Byte(), Page: parsePage(r)}
}

// AppendAnswer implements Query.
func (q *MembersQuery) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return appendList(dst, &q.List), nil
}

// ParseAnswer implements Query.
func (q *MembersQuery) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) { q.List = parseList(r, &q.Page) }

// RowsOfMemberQuery reads a page of the rows that a member is in, newest first. Its read has no
// ids; it merges one page of each shard.
type RowsOfMemberQuery struct {
	raftfsm.Defaults
	Column uint8
	Member uint64
	Page   members.Page

	List members.List // the answer

	lists []memberRows // by shard
}

// memberRows is the page to read from one shard, and the result. In page.After, the id is a key of
// that shard.
type memberRows struct {
	page members.Page
	list members.List
}

// Number implements Query.
func (*RowsOfMemberQuery) Number() byte { return 5 }

// Limits implements Query.
func (q *RowsOfMemberQuery) Limits(int) raftfsm.Limits { return limitsOfList(&q.Page) }

// Split implements Query.
func (q *RowsOfMemberQuery) Split(read *raftfsm.Read) {
	q.lists = make([]memberRows, len(read.Parts))
	for s := range read.Parts {
		if read.Route.Exists(s) {
			read.Parts[s].Keys = append(read.Parts[s].Keys, q.Member)
		}
		page := q.Page
		if page.Continues {
			key, above := read.Route.FirstAbove(page.After.ID, s)
			if page.After.ID = key; !above { // no row of the shard follows After at the same stamp
				page.After = members.Entry{At: page.After.At - 1}
			}
		}
		q.lists[s].page = page
	}
}

// Answer implements Query. It may always read the disk, because sets are only there.
func (q *RowsOfMemberQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, _ bool, _ time.Time) error {
	of := &q.lists[p.Shard]
	return readSets(m, func(sets *members.Group) (err error) {
		of.list, err = sets.Rows(p.Keys[0], q.Column, of.page)
		return err
	})
}

// Join implements Query.
func (q *RowsOfMemberQuery) Join(read *raftfsm.Read) bool {
	q.List = members.List{}
	for s := range q.lists {
		for _, e := range q.lists[s].list.Entries {
			q.List.Entries = append(q.List.Entries, members.Entry{ID: read.Route.IDOf(s, e.ID), At: e.At})
		}
		q.List.More = q.List.More || q.lists[s].list.More
	}
	slices.SortFunc(q.List.Entries, members.Entry.Compare)
	if len(q.List.Entries) > q.Page.Limit {
		q.List.Entries, q.List.More = q.List.Entries[:q.Page.Limit], true
	}
	return false
}

// AppendTo implements Query: column (1) | page. The key of the part is the member.
func (q *RowsOfMemberQuery) AppendTo(dst []byte, p *raftfsm.Part) []byte {
	return appendPage(append(dst, q.Column), &q.lists[p.Shard].page)
}

// parseRowsOfMemberQuery parses the bytes of AppendTo into a query for a single shard.
func parseRowsOfMemberQuery(r *wire.Reader) raftfsm.Query {
	q := &RowsOfMemberQuery{Column: r.Byte(), Page: parsePage(r)}
	q.lists = []memberRows{{page: q.Page}}
	return q
}

// AppendAnswer implements Query.
func (q *RowsOfMemberQuery) AppendAnswer(dst []byte, p *raftfsm.Part) ([]byte, error) {
	return appendList(dst, &q.lists[p.Shard].list), nil
}

// ParseAnswer implements Query.
func (q *RowsOfMemberQuery) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	q.lists[p.Shard].list = parseList(r, &q.Page)
}

func limitsOfList(page *members.Page) raftfsm.Limits {
	return raftfsm.Limits{Keys: 1, Alone: true, Bytes: 2 * binary.MaxVarintLen64 * page.Limit, Answer: (2 + 2*page.Limit) * binary.MaxVarintLen64}
}

// appendPage appends a page:
//
//	limit | flag: the page continues (1) | if so, stamp and id (8) of the last entry of the page before
func appendPage(dst []byte, page *members.Page) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(page.Limit)), wire.Bit(page.Continues))
	if !page.Continues {
		return dst
	}
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(dst, uint64(page.After.At)), page.After.ID)
}

func parsePage(r *wire.Reader) members.Page {
	page := members.Page{Limit: int(r.UintTo(raftfsm.ReadKeysMax))}
	if page.Continues = r.Bool(); page.Continues {
		page.After = members.Entry{At: members.Stamp(r.Uint()), ID: r.Fixed64()}
	}
	return page
}

// appendList appends a list: number of entries | 1 if there may be more, otherwise 0 (1) | stamp and id (8)
// of each entry.
func appendList(dst []byte, list *members.List) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(list.Entries))), wire.Bit(list.More))
	for _, e := range list.Entries {
		dst = binary.LittleEndian.AppendUint64(binary.AppendUvarint(dst, uint64(e.At)), e.ID)
	}
	return dst
}

func parseList(r *wire.Reader, page *members.Page) members.List {
	list := members.List{Entries: make([]members.Entry, r.CountTo(9, page.Limit)), More: r.Bool()}
	for i := range list.Entries {
		list.Entries[i] = members.Entry{At: members.Stamp(r.Uint()), ID: r.Fixed64()}
	}
	return list
}
