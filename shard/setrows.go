package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/wire"
)

// setQuery is the query of a read of sets, apart from its keys.
type setQuery struct {
	column uint8
	member uint64       // of readContains: the member to find in the set of each key
	page   members.Page // of readMembers and readRows
}

// setRows reads sets of this replica. After an error, another replica may be asked.
func (r *localReplica) setRows(q *setQuery, of readOf, keys []uint64) ([]int64, error) {
	if r.counters == nil || r.counters.Members() == nil {
		return nil, fmt.Errorf("%w: the shard has no members", ErrNoQuorum)
	}
	var (
		sets = r.counters.Members()
		list members.List
		rows []int64
		err  error
	)
	switch of {
	case readContains:
		in := make([]bool, len(keys))
		err = sets.Contains(q.member, q.column, keys, in)
		for _, is := range in {
			rows = append(rows, int64(wire.Bit(is)))
		}
	case readMembers:
		list, err = sets.Members(keys[0], q.column, q.page)
		rows = appendList(nil, &list)
	default:
		list, err = sets.Rows(keys[0], q.column, q.page)
		rows = appendList(nil, &list)
	}
	if err == nil {
		return rows, nil
	}
	if errors.Is(err, members.ErrDamaged) {
		r.damage.Note(err)
	}
	return nil, fmt.Errorf("%w: %w", ErrNoQuorum, err)
}

// appendTo appends:
//
//	column (1) | member (8) | limit | flag: the page continues (1) | if so, stamp and id (8) of the last entry of the page before
func (q *setQuery) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(append(dst, q.column), q.member)
	dst = append(binary.AppendUvarint(dst, uint64(q.page.Limit)), wire.Bit(q.page.Continues))
	if !q.page.Continues {
		return dst
	}
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(dst, uint64(q.page.After.At)), q.page.After.ID)
}

func parseSetQuery(r *wire.Reader) setQuery {
	q := setQuery{column: r.Byte(), member: r.Fixed64()}
	q.page.Limit = int(r.UintTo(readKeysMax))
	if q.page.Continues = r.Bool(); q.page.Continues {
		q.page.After = members.Entry{At: members.Stamp(r.Uint()), ID: r.Fixed64()}
	}
	return q
}

// appendList appends a list as a row: the number of entries, 1 if there may be more or else 0, then
// the stamp and the id of each entry.
func appendList(row []int64, list *members.List) []int64 {
	row = append(row, int64(len(list.Entries)), int64(wire.Bit(list.More)))
	for _, e := range list.Entries {
		row = append(row, int64(e.At), int64(e.ID))
	}
	return row
}

// listOf parses a row of appendList.
func listOf(row []int64) members.List {
	list := members.List{More: row[1] != 0}
	for e := range slices.Chunk(row[2:], 2) {
		list.Entries = append(list.Entries, members.Entry{At: members.Stamp(e[0]), ID: uint64(e[1])})
	}
	return list
}
