package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
)

const (
	// groupNameWords is how many counts of a row the longest name of a group takes.
	groupNameWords = (raftfsm.GroupNameBytesMax + 7) / 8
	// groupsRowMax is the longest row of appendGroupsRow.
	groupsRowMax = 1 + raftfsm.GroupsMax*(2+groupNameWords+raftfsm.FolloweesMax)
)

// groups returns the groups of a user, as Timelines.Groups does.
func (rd *reader) groups(ks *Keyspace, user uint64, opt *ReadOptions) ([]raftfsm.Group, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return nil, err
	}
	s, key := groups[0].route.KeyOf(user)
	r, err := rd.admitted(groups[s], opt, time.Now())
	if err != nil {
		return nil, err
	}
	if r != nil && r.feed != nil {
		if all, inMemory := r.feed.Groups(key); inMemory {
			return all, nil
		}
	}
	row, err := rd.fetch(groups[s], r, readQuery{of: readGroups}, []uint64{key}, opt)
	if err != nil {
		return nil, err
	}
	return groupsOfRow(row), nil
}

// groupsRows is feedRows for groups.
func (r *localReplica) groupsRows(q *remoteRead, cold bool, deadline time.Time) (rows []int64, err error) {
	if r.feed == nil {
		return nil, fmt.Errorf("%w: a read of groups in group %d", wire.ErrBadMessage, q.group)
	}
	all := make([][]raftfsm.Group, len(q.keys))
	if cold {
		err = r.eachBody(len(q.keys), deadline, func(ctx context.Context, i int) (err error) {
			all[i], err = r.feed.FetchGroups(ctx, q.keys[i])
			return err
		})
	}
	for i, key := range q.keys {
		var inMemory bool
		if !cold {
			if all[i], inMemory = r.feed.Groups(key); !inMemory {
				return nil, errs.ErrColdRows
			}
		}
		rows = appendGroupsRow(rows, all[i])
	}
	return rows, err
}

// appendGroupsRow appends groups as a row: their number, then of each the length of its
// name, the name in words of 8 bytes, the number of followees and their ids.
func appendGroupsRow(row []int64, groups []raftfsm.Group) []int64 {
	row = append(row, int64(len(groups)))
	for _, g := range groups {
		row = appendText(row, []byte(g.Name))
		row = append(row, int64(len(g.Followees)))
		for _, id := range g.Followees {
			row = append(row, int64(id))
		}
	}
	return row
}

// groupsOfRow reads what appendGroupsRow wrote.
func groupsOfRow(row []int64) []raftfsm.Group {
	groups := make([]raftfsm.Group, row[0])
	row = row[1:]
	for i := range groups {
		name, rest := textOf(row)
		n := rest[0]
		groups[i] = raftfsm.Group{Name: string(name), Followees: make([]uint64, n)}
		row = rest
		for f, id := range row[1 : 1+n] {
			groups[i].Followees[f] = uint64(id)
		}
		row = row[1+n:]
	}
	return groups
}

// parseGroupsRows reads an answer with a row of appendGroupsRow for each key.
func parseGroupsRows(r *wire.Reader, q *remoteRead) (rows []int64) {
	for range q.keys {
		rows = parseCounted(r, rows, raftfsm.GroupsMax, func(int) int { return 0 })
		if r.Err != nil {
			return nil
		}
		for range rows[len(rows)-1] {
			rows = parseCounted(r, rows, raftfsm.GroupNameBytesMax, textWords)
			rows = parseCounted(r, rows, raftfsm.FolloweesMax, func(n int) int { return n })
		}
	}
	return rows
}

// textWords returns how many counts of a row a text of n bytes takes.
func textWords(n int) int { return (n + 7) / 8 }

// appendText appends a text to a row: its length, then its bytes in words of 8.
func appendText(row []int64, text []byte) []int64 {
	row = append(row, int64(len(text)))
	for at := 0; at < len(text); at += 8 {
		var word [8]byte
		copy(word[:], text[at:])
		row = append(row, int64(binary.LittleEndian.Uint64(word[:])))
	}
	return row
}

// textOf returns the text that a row begins with, and the rest of the row.
func textOf(row []int64) (text []byte, rest []int64) {
	length, row := int(row[0]), row[1:]
	for ; len(text) < length; row = row[1:] {
		text = binary.LittleEndian.AppendUint64(text, uint64(row[0]))
	}
	return text[:length], row
}
