package shard

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/feed"
)

// Groups implements Timelines.
func (rd *reader) Groups(ks *Keyspace, user uint64, opt *ReadOptions) ([]feed.Group, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return nil, rd.orUnknown(ks, err)
	}
	s, key := groups[0].route.KeyOf(user)
	r, err := rd.admitted(groups[s], opt, time.Now())
	if err != nil {
		return nil, rd.orUnknown(ks, err)
	}
	if r != nil && r.feed != nil {
		if all, inMemory := r.feed.Groups(key); inMemory {
			return all, nil
		}
	}
	row, err := rd.fetch(groups[s], r, readQuery{of: readGroups}, []uint64{key}, opt)
	if err != nil {
		return nil, rd.orUnknown(ks, err)
	}
	return parseJSONRow[[]feed.Group](row)
}

// groupsRow returns the groups of the user of a key, as a row of jsonRow. It may read the disk.
func (r *localReplica) groupsRow(q *remoteRead, deadline time.Time) ([]int64, error) {
	if r.feed == nil {
		return nil, fmt.Errorf("%w: a read of groups in group %d", wire.ErrBadMessage, q.group)
	}
	var groups []feed.Group
	err := r.eachBody(1, deadline, func(ctx context.Context, _ int) (err error) {
		groups, err = r.feed.FetchGroups(ctx, q.keys[0])
		return err
	})
	if err != nil {
		return nil, err
	}
	return jsonRow(groups)
}

// boardRow returns the board as a row of jsonRow.
func (r *localReplica) boardRow(q *remoteRead) ([]int64, error) {
	if r.board == nil {
		return nil, fmt.Errorf("%w: group %d is not the board's", wire.ErrBadMessage, q.group)
	}
	return jsonRow(r.board.View())
}

// jsonRow returns the length of v's JSON, then the JSON in words of 8 bytes.
func jsonRow(v any) ([]int64, error) {
	text, err := json.Marshal(v)
	row := []int64{int64(len(text))}
	for at := 0; at < len(text); at += 8 {
		var word [8]byte
		copy(word[:], text[at:])
		row = append(row, int64(binary.LittleEndian.Uint64(word[:])))
	}
	return row, err
}

// textWords returns the number of words of n bytes of JSON.
func textWords(n int) int { return (n + 7) / 8 }

// parseJSONRow reads a row of jsonRow.
func parseJSONRow[T any](row []int64) (v T, err error) {
	var text []byte
	for _, word := range row[1:] {
		text = binary.LittleEndian.AppendUint64(text, uint64(word))
	}
	if err := json.Unmarshal(text[:row[0]], &v); err != nil {
		return v, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
	}
	return v, nil
}
