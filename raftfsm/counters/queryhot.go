package counters

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rankings"
)

// These are bounds of a ranking, the result of a HotQuery or a TopQuery.
const (
	RankingMax     = rankings.LimitMax // bounds its rows
	RankingDefault = 100               // the number of rows if the caller sets no limit
)

// HotQuery reads which ids gained most in a column. Its read has no ids. The results of different
// shards are from slightly different moments.
type HotQuery struct {
	raftfsm.Defaults
	Column uint8
	Window rankings.Window
	Now    int64 // the end of the window, in Unix milliseconds
	Limit  int   // up to RankingMax

	// Hottest is the result. The Key of a gain is an id. Since is the earliest of all shards, and
	// Error the largest.
	rankings.Hottest
}

// Number implements Query.
func (*HotQuery) Number() byte { return 6 }

// Limits implements Query.
func (q *HotQuery) Limits(int) raftfsm.Limits { return limitsOfRanking(3 + 3*q.Limit) }

func limitsOfRanking(words int) raftfsm.Limits {
	return raftfsm.Limits{Keys: 1, Alone: true, Bytes: 8 * words, Answer: words * binary.MaxVarintLen64}
}

// Split implements Query.
func (*HotQuery) Split(read *raftfsm.Read) { readAllShards(read) }

// readAllShards adds a key to each part of a shard that exists, because a part without keys is not read.
func readAllShards(read *raftfsm.Read) {
	for s := range read.Parts {
		if p := &read.Parts[s]; read.Route.Exists(s) {
			p.Keys = append(p.Keys[:0], 0)
		}
	}
}

// rankedBy converts m to a *Machine. If disk is false, it returns ErrNotInMemory: a ranking may
// take milliseconds, so it must run where reads of the disk run.
func rankedBy(m raftfsm.Machine, disk bool) (*Machine, error) {
	c, is := m.(*Machine)
	switch {
	case !is:
		return nil, raftfsm.ErrOtherKind
	case !disk:
		return nil, raftfsm.ErrNotInMemory
	}
	return c, nil
}

// Answer implements Query. It sets Words to Since in Unix milliseconds, Error, and the number of
// gains; then for each gain its key, its amount and its error.
func (q *HotQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, _ time.Time) error {
	c, err := rankedBy(m, disk)
	if err != nil {
		return err
	}
	h := c.Hot().Hottest(q.Window, q.Column, q.Now, q.Limit)
	p.Words = append(p.Words[:0], h.Since.UnixMilli(), h.Error, int64(len(h.Gains)))
	for _, g := range h.Gains {
		p.Words = append(p.Words, int64(g.Key), g.Gained, g.Error)
	}
	return nil
}

// Join implements Query.
func (q *HotQuery) Join(read *raftfsm.Read) bool {
	q.Hottest = rankings.Hottest{}
	if read.Err != nil {
		return false
	}
	for s := range read.Parts {
		words := read.Parts[s].Words
		if !read.Route.Exists(s) {
			continue
		}
		if since := time.UnixMilli(words[0]); s == 0 || since.Before(q.Since) {
			q.Since = since
		}
		q.Error = max(q.Error, words[1])
		for g := range slices.Chunk(words[3:], 3) {
			q.Gains = append(q.Gains, rankings.Gain{Key: read.Route.IDOf(s, uint64(g[0])), Gained: g[1], Error: g[2]})
		}
	}
	q.Gains = rankings.TopGains(q.Gains, q.Limit)
	return false
}

// AppendTo implements Query: column (1) | window (1) | now (varint) | limit.
func (q *HotQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return binary.AppendUvarint(binary.AppendVarint(append(dst, q.Column, byte(q.Window)), q.Now), uint64(q.Limit))
}

func parseHotQuery(r *wire.Reader) raftfsm.Query {
	return &HotQuery{
		Column: uint8(r.UintTo(engine.ColumnsMax - 1)), Window: rankings.Window(r.UintTo(uint64(rankings.Day))),
		Now: r.Int(), Limit: int(r.UintTo(RankingMax)),
	}
}

// ParseAnswer implements Query.
func (q *HotQuery) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseCounted(r, raftfsm.ParseWords(r, 2), q.Limit, func(n int) int { return 3 * n })
}

// TopQuery reads the largest counts of a column. Among equal counts, the lowest ids come first. Its
// read has no ids. Different counts may be from different moments during the read.
type TopQuery struct {
	raftfsm.Defaults
	Column uint8
	Limit  int // up to RankingMax

	Top []engine.Place // the result; all counts are above 0
	// Scanning is set if a shard must first read all its rows and has not finished in time. Then
	// Read is the number of rows read so far.
	Scanning bool
	Read     uint64
}

// Progress returns a message for the caller if Scanning is set.
func (q *TopQuery) Progress() string {
	return fmt.Sprintf("the first call reads all rows, %d so far: try again", q.Read)
}

// Number implements Query.
func (*TopQuery) Number() byte { return 7 }

// Limits implements Query.
func (q *TopQuery) Limits(int) raftfsm.Limits { return limitsOfRanking(2 + 2*q.Limit) }

// Split implements Query.
func (*TopQuery) Split(read *raftfsm.Read) { readAllShards(read) }

// Answer implements Query. It sets Words to the number of rows that an unfinished scan has read, or
// -1, and the number of rows in the result; then for each of these its key and count.
func (q *TopQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, deadline time.Time) error {
	c, err := rankedBy(m, disk)
	if err != nil {
		return err
	}
	answerBy := time.Now().Add(time.Until(deadline) * 3 / 4) // leave time to send the answer to another node
	top, err := c.largest.Load().Top(q.Column, q.Limit, answerBy)
	scanning, is := errors.AsType[*rankings.ScanningError](err)
	switch {
	case is:
		p.Words = append(p.Words[:0], int64(scanning.Read), 0)
		return nil
	case err != nil:
		return err
	}
	p.Words = append(p.Words[:0], -1, int64(len(top)))
	for _, row := range top {
		p.Words = append(p.Words, int64(row.ID), row.Count)
	}
	return nil
}

// Join implements Query.
func (q *TopQuery) Join(read *raftfsm.Read) bool {
	q.Top, q.Scanning, q.Read = nil, false, 0
	if read.Err != nil {
		return false
	}
	for s := range read.Parts {
		words := read.Parts[s].Words
		if !read.Route.Exists(s) {
			continue
		}
		if words[0] >= 0 {
			q.Scanning, q.Read = true, q.Read+uint64(words[0])
		}
		for row := range slices.Chunk(words[2:], 2) {
			q.Top = append(q.Top, engine.Place{ID: read.Route.IDOf(s, uint64(row[0])), Count: row[1]})
		}
	}
	slices.SortFunc(q.Top, engine.Place.Compare)
	q.Top = q.Top[:min(len(q.Top), q.Limit)]
	return false
}

// AppendTo implements Query: column (1) | limit.
func (q *TopQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return binary.AppendUvarint(append(dst, q.Column), uint64(q.Limit))
}

func parseTopQuery(r *wire.Reader) raftfsm.Query {
	return &TopQuery{Column: uint8(r.UintTo(engine.ColumnsMax - 1)), Limit: int(r.UintTo(RankingMax))}
}

// ParseAnswer implements Query.
func (q *TopQuery) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseCounted(r, raftfsm.ParseWords(r, 1), q.Limit, func(n int) int { return 2 * n })
}
