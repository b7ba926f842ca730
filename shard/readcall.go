package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

const (
	// readWaitMax bounds how long a node that reads for another node waits before it refuses the read.
	// The same call carries reads of other callers.
	readWaitMax = 50 * time.Millisecond
	// readKeysMax bounds the keys of one read: as many as a request may have.
	readKeysMax = 10_000
	// feedsInReadMax bounds the feeds of one read. If each has the most followees, they take some
	// megabytes.
	feedsInReadMax = 32
	// feedBytesHint is the estimated size of a feed in an answer, for the bound of a call's bytes.
	feedBytesHint = 8 << 10
)

// remoteRead is one shard's part of a read for another node.
type remoteRead struct {
	readQuery
	group       uint32
	route       codec.Route
	consistency Consistency
	staleness   time.Duration
	index       uint64 // the token's index of the group; 0 for none
	keys        []uint64
	cold        bool // the read waits for cold rows, until its caller's deadline
}

// readQuery is the query of a read, the same for each key.
type readQuery struct {
	of    readOf
	width int                  // counts of a row
	chunk int                  // if not 0: read up to this many rows of a table, from the key on
	posts counters.NewestPosts // of readPosts
	sets  setQuery             // of readContains, readMembers and readRows
}

// readOf names what a read returns.
type readOf uint8

const (
	readCounts  = readOf(rows.Counts)
	readCursors = readOf(unread.Cursors)
	// readFeeds reads feeds, in rows of appendFeedRow.
	readFeeds readOf = 2
	// readPosts reads the newest posts of all authors together, in a row of outbox.AppendRow.
	readPosts readOf = 3
	// readGroups reads the groups of a user, in a jsonRow.
	readGroups readOf = 4
	// readBoard reads the board, in a jsonRow.
	readBoard readOf = 5
	// readContains reads whether the set of each key has a member, as 0 or 1.
	readContains readOf = 6
	// readMembers reads a page of the members of a row, and readRows a page of the rows of a member,
	// in rows of appendList.
	readMembers readOf = 7
	readRows    readOf = 8
)

// isTable reports whether the read is of a table.
func (o readOf) isTable() bool { return o <= readCursors }

// table returns the table of the read.
func (o readOf) table() raftfsm.Table { return raftfsm.Table(o) }

// ofSets reports whether the read is of sets of members.
func (o readOf) ofSets() bool { return o >= readContains }

// keysMax returns the most keys of one read. If it is 1, the read must have exactly one key.
func (q *readQuery) keysMax() int {
	switch q.of {
	case readFeeds:
		return feedsInReadMax
	case readGroups, readBoard, readMembers, readRows:
		return 1
	}
	if q.chunk > 0 {
		return 1
	}
	return readKeysMax
}

// travelsAlone reports whether the read needs a call of its own, because it may read the disk or have
// a large answer.
func (q *readQuery) travelsAlone() bool { return q.of >= readGroups || q.chunk > 0 }

// readAnswer is the answer to a remoteRead: rows in the order of its keys, or an error.
type readAnswer struct {
	rows []int64
	err  error
}

// newRemoteRead returns a read for other nodes, without query and keys.
func newRemoteRead(g *shardReplica, opt *ReadOptions) *remoteRead {
	return &remoteRead{group: g.number, route: g.of(), consistency: opt.Consistency, staleness: opt.MaxStaleness, index: opt.Token.Index(g.number)}
}

// size estimates the bytes of a read and its answer.
func (q *remoteRead) size() int {
	switch q.of {
	case readFeeds:
		return feedBytesHint * len(q.keys)
	case readPosts:
		return 8*len(q.keys) + postBytes*q.posts.Limit
	case readGroups, readBoard:
		return feedBytesHint
	}
	return 8*max(len(q.keys), q.chunk)*(1+q.width) + postBytes*q.sets.page.Limit
}

// readBatchers batch the reads from one node.
type readBatchers struct {
	memory *rpc.Batcher[*remoteRead, readAnswer]
	disk   *rpc.Batcher[*remoteRead, readAnswer] // of reads that may need the disk there
}

// batchers returns the batchers of reads from a node.
func (rd *reader) batchers(node string) *readBatchers {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	b := rd.mu.batchers[node]
	if b == nil {
		cfg := rpc.BatcherConfig[*remoteRead, readAnswer]{
			Send: rd.sendReads(node), Items: askQueueMax, Bytes: readsQueueBytes, CallBytes: readsInCallBytes, Size: (*remoteRead).size,
			InFlight: askInFlightMax, CallItems: readsInCallMax,
		}
		b = &readBatchers{memory: rpc.NewBatcher(cfg)}
		cfg.InFlight, cfg.CallItems = tiering.ReadsAtOnce, 1
		b.disk = rpc.NewBatcher(cfg)
		rd.mu.batchers[node] = b
	}
	return b
}

// close closes the batchers.
func (rd *reader) close() {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	for _, b := range rd.mu.batchers {
		b.memory.Close()
		b.disk.Close()
	}
}

// readAt reads from one node. It gives up once a living node would have answered, so that the
// caller can try another node. If the node answers that the rows are cold, readAt makes a second
// call, which may wait for the disk. For a read that travels alone, readAt makes only that second
// call.
func (rd *reader) readAt(ctx context.Context, node string, q *remoteRead) ([]int64, error) {
	ask := func(b *rpc.Batcher[*remoteRead, readAnswer], q *remoteRead, within time.Duration) ([]int64, error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		answer, err := b.Do(ctx, q)
		if err != nil {
			return nil, err
		}
		return answer.rows, answer.err
	}
	b := rd.batchers(node)
	again := *q
	if again.cold = true; !q.travelsAlone() {
		if rows, err := ask(b.memory, q, prover.ConfirmTimeout); !errors.Is(err, errs.ErrColdRows) {
			return rows, err
		}
	}
	return ask(b.disk, &again, prover.ConfirmTimeout+tiering.ReadMax)
}

func (rd *reader) sendReads(node string) func(context.Context, []*remoteRead) ([]readAnswer, error) {
	return func(ctx context.Context, reads []*remoteRead) ([]readAnswer, error) {
		request, answerBytes := binary.AppendUvarint(nil, uint64(len(reads))), 0
		for _, q := range reads {
			request = appendRead(request, q)
			answerBytes += q.answerMax()
		}
		raw, err := rd.streams.Call(ctx, node, methodRead, request, answerBytes)
		if errors.Is(err, rpc.ErrNotSent) && ctx.Err() == nil {
			raw, err = rd.sendReadsBy(ctx, node, reads, request, err)
		}
		if err != nil {
			return nil, err
		}
		r := wire.Reader{Rest: raw}
		answers := make([]readAnswer, len(reads))
		for i, q := range reads {
			if answers[i].err = rpc.ReadError(&r); answers[i].err == nil {
				answers[i].rows = parseReadRows(&r, q)
			}
		}
		return answers, r.End()
	}
}

// answerMax bounds the bytes of the answer, which is rows or an error.
func (q *remoteRead) answerMax() int {
	width := q.width
	switch q.of {
	case readFeeds:
		width = 2 + 2*feed.FolloweesMax
	case readPosts:
		return max(rpc.ErrorBytesMax, postBytes*(1+q.posts.Limit))
	case readGroups, readBoard:
		return rpc.MessageBytesMax
	case readMembers, readRows:
		width = 2 + 2*q.sets.page.Limit
	}
	if q.chunk > 0 {
		width = 1 + q.chunk*(1+q.width)
	}
	return max(rpc.ErrorBytesMax, 1+len(q.keys)*width*binary.MaxVarintLen64)
}

// sendReadsBy asks a third node to relay reads that were not sent because of err. If there is none,
// it returns err.
func (rd *reader) sendReadsBy(ctx context.Context, node string, reads []*remoteRead, request []byte, err error) ([]byte, error) {
	via := rd.relayFor(rd.registry.shardOf(reads[0].group), node)
	if via == "" {
		return nil, err
	}
	relayed := wire.AppendBytes(make([]byte, 0, len(node)+len(request)+4), []byte(node))
	return rd.calls.Call(ctx, via, methodRelayRead, append(relayed, request...))
}

// appendRead appends a read:
//
//	group | route | of (1) | consistency (1) | 1 if it waits for cold rows (1) | nanoseconds of staleness
//	| index of the token | columns | of tables: chunk | of readPosts: last (8), below, limit
//	| of sets: see setQuery.appendTo | number of keys | keys (8)
//
// Numbers without a size are uvarints, the others little-endian.
func appendRead(dst []byte, q *remoteRead) []byte {
	dst = q.route.AppendTo(binary.AppendUvarint(dst, uint64(q.group)))
	dst = append(dst, byte(q.of), byte(q.consistency), wire.Bit(q.cold))
	dst = binary.AppendUvarint(dst, uint64(q.staleness))
	dst = binary.AppendUvarint(dst, q.index)
	dst = binary.AppendUvarint(dst, uint64(q.width))
	switch {
	case q.of.isTable():
		dst = binary.AppendUvarint(dst, uint64(q.chunk))
	case q.of == readPosts:
		dst = binary.AppendUvarint(binary.LittleEndian.AppendUint64(dst, q.posts.Last), uint64(q.posts.Below))
		dst = binary.AppendUvarint(dst, uint64(q.posts.Limit))
	case q.of.ofSets():
		dst = q.sets.appendTo(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(len(q.keys)))
	for _, key := range q.keys {
		dst = binary.LittleEndian.AppendUint64(dst, key)
	}
	return dst
}

func parseRead(r *wire.Reader) *remoteRead {
	q := &remoteRead{group: uint32(r.UintTo(1<<32 - 1))}
	var ok bool
	if q.route, r.Rest, ok = codec.ParseRoute(r.Rest); !ok {
		r.Fail("a read without a route")
	}
	q.of, q.consistency, q.cold = readOf(r.UintTo(uint64(readRows))), Consistency(r.UintTo(uint64(Linearizable))), r.Bool()
	q.staleness, q.index = time.Duration(r.UintTo(1<<63-1)), r.Uint()
	q.width = int(r.UintTo(engine.ColumnsMax))
	switch {
	case q.of.isTable():
		q.chunk = int(r.UintTo(readKeysMax))
	case q.of == readPosts:
		q.posts = counters.NewestPosts{Last: r.Fixed64(), Below: int(r.UintTo(readKeysMax)), Limit: int(r.UintTo(PostsMax))}
		if q.posts.Limit == 0 {
			r.Fail("a read of no posts")
		}
	case q.of.ofSets():
		q.sets = parseSetQuery(r)
	}
	n := r.Count(8)
	if most := q.keysMax(); n > most || n == 0 && most == 1 {
		r.Fail(fmt.Sprintf("%d keys", n))
		n = 0
	}
	q.keys = make([]uint64, n)
	for i := range q.keys {
		q.keys[i] = r.Fixed64()
	}
	return q
}

// parseReadRows parses the answer of one read.
func parseReadRows(r *wire.Reader, q *remoteRead) []int64 {
	pairs := func(n int) int { return 1 + 2*n }
	switch {
	case q.chunk > 0:
		return parseCounted(r, nil, q.chunk, func(n int) int { return n * (1 + q.width) })
	case q.of == readPosts:
		return parsePostsRow(r, q)
	case q.of == readGroups, q.of == readBoard:
		return parseCounted(r, nil, rpc.MessageBytesMax, textWords)
	case q.of == readMembers, q.of == readRows:
		return parseCounted(r, nil, q.sets.page.Limit, pairs)
	case q.of == readFeeds:
		var rows []int64
		for range q.keys {
			rows = parseCounted(r, rows, feed.FolloweesMax, pairs)
		}
		return rows
	}
	return parseCounts(r, len(q.keys)*q.width)
}

// parseCounted parses a count n, which countMax bounds, and the words(n) numbers after it. It
// appends all of them to rows.
func parseCounted(r *wire.Reader, rows []int64, countMax int, words func(n int) int) []int64 {
	n := r.Int()
	if n < 0 || n > int64(countMax) {
		r.Fail(fmt.Sprintf("%d in a row, of at most %d,", n, countMax))
		return rows
	}
	return append(append(rows, n), parseCounts(r, words(int(n)))...)
}

func parseCounts(r *wire.Reader, n int) []int64 {
	if n > len(r.Rest) {
		r.Fail(fmt.Sprintf("%d counts", n))
		return nil
	}
	counts := make([]int64, n)
	for i := range counts {
		counts[i] = r.Int()
	}
	return counts
}
