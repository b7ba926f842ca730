package shard

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/rpc"
)

// readWaitMax bounds how long a node waits for its replica before it refuses another node's read.
// It is short, because the same call also has reads of other callers.
const readWaitMax = 50 * time.Millisecond

// remoteRead is one shard's part of a read, to be sent to another node.
type remoteRead struct {
	group       uint32
	route       codec.Route
	number      byte // see raftfsm.Query
	consistency Consistency
	staleness   time.Duration
	index       uint64 // index of the group in the read's token; 0 for none
	disk        bool   // the read may wait for the disk, until its caller's deadline
	query       []byte // written by Query.AppendTo
	keys        []uint64
}

// sentRead is an encoded remoteRead. It shares no memory with its caller, because the call may
// outlive the caller's wait.
type sentRead struct {
	group     uint32
	message   []byte // written by remoteRead.appendTo
	size      int    // estimated bytes of the read and its answer
	answerMax int    // maximal bytes of the answer
}

// readAnswer is the answer to a sentRead: the bytes of Query.AppendAnswer, or an error.
type readAnswer struct {
	body []byte
	err  error
}

func newRemoteRead(q raftfsm.Query, p *raftfsm.Part, g *shardReplica, opt *ReadOptions) *remoteRead {
	return &remoteRead{
		group: g.number, route: p.Route, number: q.Number(), consistency: opt.Consistency, staleness: opt.MaxStaleness,
		index: opt.Token.Index(g.number), query: q.AppendTo(nil, p), keys: p.Keys,
	}
}

// readBatchers batch the reads from one node.
type readBatchers struct {
	memory *rpc.Batcher[*sentRead, readAnswer]
	disk   *rpc.Batcher[*sentRead, readAnswer] // reads that may need the other node's disk
}

func (rd *reader) batchers(node string) *readBatchers {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	b := rd.mu.batchers[node]
	if b == nil {
		cfg := rpc.BatcherConfig[*sentRead, readAnswer]{
			Send: rd.sendReads(node), Items: askQueueMax, Bytes: readsQueueBytes, CallBytes: readsInCallBytes, Size: func(read *sentRead) int { return read.size },
			InFlight: askInFlightMax, CallItems: readsInCallMax,
		}
		b = &readBatchers{memory: rpc.NewBatcher(cfg)}
		cfg.InFlight, cfg.CallItems = raftfsm.DiskReadsAtOnce, 1
		b.disk = rpc.NewBatcher(cfg)
		rd.mu.batchers[node] = b
	}
	return b
}

func (rd *reader) close() {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	for _, b := range rd.mu.batchers {
		b.memory.Close()
		b.disk.Close()
	}
}

// readAt fills a part from one node. It waits only as long as a living node needs to answer, so
// that the caller can try another node. If the node replies that the read needs the disk, readAt
// makes a second call, which may wait for the disk. For a read that must not be batched, readAt
// makes only that second call.
func (rd *reader) readAt(ctx context.Context, node string, q raftfsm.Query, p *raftfsm.Part, g *shardReplica, opt *ReadOptions) error {
	limits, read, b := q.Limits(len(p.Keys)), newRemoteRead(q, p, g, opt), rd.batchers(node)
	ask := func(b *rpc.Batcher[*sentRead, readAnswer], within time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		answer, err := b.Do(ctx, &sentRead{group: g.number, message: read.appendTo(nil), size: limits.Bytes, answerMax: limits.Answer})
		if err = cmp.Or(err, answer.err); err != nil {
			return err
		}
		r := wire.Reader{Rest: answer.body}
		q.ParseAnswer(&r, p)
		return r.End()
	}
	if !limits.Alone {
		if err := ask(b.memory, leadership.ConfirmTimeout); !errors.Is(err, errs.ErrColdRows) {
			return err
		}
	}
	read.disk = true
	return ask(b.disk, leadership.ConfirmTimeout+raftfsm.DiskReadMax)
}

func (rd *reader) sendReads(node string) func(context.Context, []*sentRead) ([]readAnswer, error) {
	return func(ctx context.Context, reads []*sentRead) ([]readAnswer, error) {
		request, answerBytes := binary.AppendUvarint(nil, uint64(len(reads))), 0
		for _, read := range reads {
			request = append(request, read.message...)
			answerBytes += max(rpc.ErrorBytesMax, 1+binary.MaxVarintLen32+read.answerMax)
		}
		raw, err := rd.streams.Call(ctx, node, methodRead, request, answerBytes)
		if errors.Is(err, rpc.ErrNotSent) && ctx.Err() == nil {
			raw, err = rd.sendReadsBy(ctx, node, reads[0].group, request, err)
		}
		if err != nil {
			return nil, err
		}
		r := wire.Reader{Rest: raw}
		answers := make([]readAnswer, len(reads))
		for i := range answers {
			if answers[i].err = rpc.ReadError(&r); answers[i].err == nil {
				answers[i].body = r.Bytes()
			}
		}
		return answers, r.End()
	}
}

// sendReadsBy asks a third node, which holds the group, to relay reads that could not be sent
// because of err. If there is no such node, sendReadsBy returns err.
func (rd *reader) sendReadsBy(ctx context.Context, node string, group uint32, request []byte, err error) ([]byte, error) {
	via := rd.relayFor(rd.registry.shardOf(group), node)
	if via == "" {
		return nil, err
	}
	relayed := wire.AppendBytes(make([]byte, 0, len(node)+len(request)+4), []byte(node))
	return rd.calls.Call(ctx, via, methodRelayRead, append(relayed, request...))
}

// appendTo encodes a read:
//
//	group | route | number of the query (1) | consistency (1) | 1 if it waits for the disk (1)
//	| nanoseconds of staleness | index of the token | length of the query | query | number of keys | keys (8)
//
// Numbers without a size are uvarints, the others little-endian.
func (read *remoteRead) appendTo(dst []byte) []byte {
	dst = read.route.AppendTo(binary.AppendUvarint(dst, uint64(read.group)))
	dst = append(dst, read.number, byte(read.consistency), wire.Bit(read.disk))
	dst = binary.AppendUvarint(dst, uint64(read.staleness))
	dst = binary.AppendUvarint(dst, read.index)
	dst = wire.AppendBytes(dst, read.query)
	dst = binary.AppendUvarint(dst, uint64(len(read.keys)))
	for _, key := range read.keys {
		dst = binary.LittleEndian.AppendUint64(dst, key)
	}
	return dst
}

func parseRead(r *wire.Reader) *remoteRead {
	read := &remoteRead{group: uint32(r.UintTo(1<<32 - 1))}
	var ok bool
	if read.route, r.Rest, ok = codec.ParseRoute(r.Rest); !ok {
		r.Fail("a read without a route")
	}
	read.number, read.consistency, read.disk = r.Byte(), Consistency(r.UintTo(uint64(Linearizable))), r.Bool()
	read.staleness, read.index = time.Duration(r.UintTo(1<<63-1)), r.Uint()
	read.query = r.Bytes()
	read.keys = make([]uint64, r.Count(8))
	for i := range read.keys {
		read.keys[i] = r.Fixed64()
	}
	return read
}

// parseQuery parses the query of a read for a shard of the given kind. It returns the query and its
// part.
func (read *remoteRead) parseQuery(kind codec.Kind) (raftfsm.Query, *raftfsm.Part, error) {
	r := wire.Reader{Rest: read.query}
	q := kinds.All.ParseQuery(kind, read.number, &r)
	if err := r.End(); err != nil {
		return nil, nil, err
	}
	n := len(read.keys)
	if keysMax := q.Limits(n).Keys; n > keysMax || n == 0 && keysMax == 1 {
		return nil, nil, fmt.Errorf("%w: %d keys of a query for at most %d", wire.ErrBadMessage, n, keysMax)
	}
	return q, &raftfsm.Part{Route: read.route, Keys: read.keys}, nil
}
