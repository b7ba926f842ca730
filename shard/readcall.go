package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

const (
	// readWaitMax bounds how long a node that was asked to read for another
	// waits before it says that it cannot: others' reads are in the same call.
	readWaitMax = 50 * time.Millisecond
	// readKeysMax bounds the keys of one read: those of a request.
	readKeysMax = 10_000
)

// remoteRead is one shard's part of a read that another node is asked for.
type remoteRead struct {
	group       uint32
	consistency Consistency
	staleness   time.Duration
	index       uint64 // of the token
	width       int
	of          readOf
	keys        []uint64
	cold        bool // it waits for cold rows, for as long as its caller does
}

// readOf says what of a shard is read.
type readOf uint8

const (
	readCounts  = readOf(raftfsm.TableCounts)
	readCursors = readOf(raftfsm.TableCursors)
	// readFeeds reads followees: their number, then of each id and posts.
	readFeeds readOf = 2

	// readOfShift is where it stands beside the consistency in a call. A program
	// that knows counters alone reads of those as before.
	readOfShift = 2
	// readColdBit of the same says that the read waits for cold rows. There are none
	// before all nodes know it.
	readColdBit = 1 << 4
)

// table is the table that is read.
func (o readOf) table() Table { return Table(o) }

// readAnswer is what a remoteRead asks for in its order, or why there is nothing.
type readAnswer struct {
	rows []int64
	err  error
}

// readElsewhere reads a part from other nodes until one can answer it or the
// deadline has come: from the leader, and if that is of no use from the others
// that hold the shard.
func (n *Node) readElsewhere(g *shardReplica, p *pagePart, width int, opt *ReadOptions) error {
	q := &remoteRead{
		group: g.number, consistency: opt.Consistency, staleness: opt.MaxStaleness,
		index: opt.Token.Index(g.number), width: width, of: p.of,
		keys: slices.Clone(p.keys), // which may still be on their way when this has given up
	}
	rows, err := n.askReaders(g, q, opt)
	if err == nil {
		copy(p.rows, rows)
	}
	return err
}

// askReaders asks the nodes that hold a shard, and this one once it does, until one
// answers or the deadline has come.
func (n *Node) askReaders(g *shardReplica, q *remoteRead, opt *ReadOptions) ([]int64, error) {
	deadline := time.NewTimer(time.Until(opt.Deadline))
	defer deadline.Stop()
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	last := ErrNoLeader
	for pause := retryPauseMin; ; pause = min(2*pause, retryPauseMax) {
		for _, node := range n.readers(g) {
			rows, err := n.readAt(ctx, node, q)
			if err == nil || errors.Is(err, ErrBadToken) || errors.Is(err, ErrUnknownKeyspace) {
				return rows, err
			}
			last = err
		}
		// The first time too: a leader that was just elected may be this node.
		r, err := n.admitted(g, opt, time.Now())
		if err != nil {
			return nil, err
		}
		if r != nil {
			here := *q
			here.cold = true
			rows, err := r.rows(&here, opt.Deadline)
			if !errors.Is(err, ErrNoQuorum) {
				return rows, err
			}
			last = err
		}
		if lost := n.nobodyHas(g, opt); lost != nil {
			return nil, lost
		}
		if n.catalog.View().Dropped(g.number) {
			return nil, ErrUnknownKeyspace
		}
		if !sleep(pause, deadline) {
			return nil, fmt.Errorf("%w: shard %d of keyspace %s: %v", ErrNoQuorum, g.shard, g.keyspace, last.Error())
		}
	}
}

// readAt asks one node, for as long as one that is there may take: then another
// is asked. What it has to read from disk it is asked for again, apart from others.
func (n *Node) readAt(ctx context.Context, node string, q *remoteRead) ([]int64, error) {
	ask := func(lane *rpc.Batcher[*remoteRead, readAnswer], q *remoteRead, within time.Duration) ([]int64, error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		answer, err := lane.Do(ctx, q)
		if err != nil {
			return nil, err
		}
		return answer.rows, answer.err
	}
	p := n.peer(node)
	rows, err := ask(p.reads, q, confirmTimeout)
	if !errors.Is(err, errs.ErrColdRows) {
		return rows, err
	}
	again := *q
	again.cold = true
	return ask(p.coldReads, &again, confirmTimeout+coldReadMax)
}

// readers returns the other nodes that may answer a read, the leader first.
func (n *Node) readers(g *shardReplica) []string {
	leader := g.leader()
	var nodes []string
	if leader != "" && leader != n.cfg.NodeKey {
		nodes = append(nodes, leader)
	}
	for _, node := range n.holders(g.number) {
		if node != leader && node != n.cfg.NodeKey {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func (n *Node) sendReads(node string) func(context.Context, []*remoteRead) ([]readAnswer, error) {
	return func(ctx context.Context, reads []*remoteRead) ([]readAnswer, error) {
		request, answerBytes := binary.AppendUvarint(nil, uint64(len(reads))), 0
		for _, q := range reads {
			request = appendRead(request, q)
			answerBytes += q.answerMax()
		}
		raw, err := n.streams.Call(ctx, node, methodRead, request, answerBytes)
		if errors.Is(err, rpc.ErrNotSent) && ctx.Err() == nil {
			raw, err = n.sendReadsBy(ctx, node, reads, request, err)
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

// answerMax bounds the bytes of the answer: the rows or an error.
func (q *remoteRead) answerMax() int {
	width := q.width
	if q.of == readFeeds {
		width = 1 + 2*raftfsm.FolloweesMax
	}
	return max(rpc.ErrorBytesMax, 1+len(q.keys)*width*binary.MaxVarintLen64)
}

func appendRead(dst []byte, q *remoteRead) []byte {
	dst = binary.AppendUvarint(dst, uint64(q.group))
	how := byte(q.consistency) | byte(q.of)<<readOfShift
	if q.cold {
		how |= readColdBit
	}
	dst = append(dst, how)
	dst = binary.AppendUvarint(dst, uint64(q.staleness))
	dst = binary.AppendUvarint(dst, q.index)
	dst = binary.AppendUvarint(dst, uint64(q.width))
	dst = binary.AppendUvarint(dst, uint64(len(q.keys)))
	for _, key := range q.keys {
		dst = binary.LittleEndian.AppendUint64(dst, key)
	}
	return dst
}

func parseRead(r *wire.Reader) *remoteRead {
	group := uint32(r.UintTo(1<<32 - 1))
	how := r.UintTo(readColdBit | uint64(readFeeds)<<readOfShift | uint64(Linearizable))
	q := &remoteRead{
		group:       group,
		consistency: Consistency(how & (1<<readOfShift - 1)),
		of:          readOf(how &^ readColdBit >> readOfShift),
		cold:        how&readColdBit != 0,
		staleness:   time.Duration(r.UintTo(1<<63 - 1)),
		index:       r.Uint(),
		width:       int(r.UintTo(engine.ColumnsMax)),
	}
	if q.consistency > Linearizable || q.of > readFeeds {
		r.Fail(fmt.Sprintf("consistency %d, table %d", q.consistency, q.of))
	}
	n := r.Count(8)
	if n > readKeysMax || q.of == readFeeds && n > feedsInReadMax {
		r.Fail(fmt.Sprintf("%d keys", n))
		n = 0
	}
	q.keys = make([]uint64, n)
	for i := range q.keys {
		q.keys[i] = r.Fixed64()
	}
	return q
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
