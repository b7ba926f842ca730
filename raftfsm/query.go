package raftfsm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// ReadKeysMax bounds the keys of one read. A request has the same bound.
const ReadKeysMax = 10_000

// ErrNotInMemory is returned by Query.Answer if the answer needs the disk.
var ErrNotInMemory = errors.New("the answer is not in memory")

// Query is a read of the shards of a keyspace. Each kind has its own queries. After the read, the
// Query contains the answer. The caller owns it, and may reuse it. Package shard splits the ids of
// a read into a Part for each shard, has each Part answered by one replica, and joins the Parts.
//
// Split and Join run in the goroutine of the read. Answer runs in it too if the Part has At and
// disk is not set. All other calls may run concurrently for several Parts, so they change only
// their Part. As an exception, a Query that reads a single key has one Part, so all calls may set
// the answer in the Query.
type Query interface {
	// Number distinguishes the queries of one kind in messages between nodes.
	Number() byte
	// Limits returns the bounds of a read of some keys of one shard.
	Limits(keys int) Limits
	// Split prepares the read. Package shard has already set the Keys of each Part. A query that
	// reads keys in all shards sets the Keys itself.
	Split(read *Read)
	// One answers a read of one key from memory. If it returns false, package shard calls Split and
	// Answer.
	One(m Machine, key uint64) bool
	// Answer fills a Part from a replica. It replaces the Words from an earlier replica. Unless
	// disk is set, it returns ErrNotInMemory instead of waiting for the disk. If disk is set, it
	// waits until the deadline. If the replica is of another kind, it returns ErrOtherKind. Only
	// the function Answer calls it, and compares the routes before and after the call. If Join of a
	// query reads a replica, Join must compare the routes again.
	Answer(m Machine, p *Part, disk bool, deadline time.Time) error
	// Join completes the answer from the Parts, and releases all references to replicas. If some
	// Parts must be read again, it returns true. In that case it has changed the Keys of these
	// Parts, or a state of the Query on which Answer depends.
	Join(read *Read) (again bool)

	// AppendTo encodes the query of a Part for another node, without the Part's keys.
	AppendTo(dst []byte, p *Part) []byte
	// AppendAnswer appends a filled Part without its keys. ParseAnswer fills a Part from these bytes.
	AppendAnswer(dst []byte, p *Part) ([]byte, error)
	ParseAnswer(r *wire.Reader, p *Part)
}

// Answer calls q.Answer. It returns an ErrRoute unless the replica has the Part's route both before
// and after the call.
func Answer(q Query, m Machine, p *Part, disk bool, deadline time.Time) error {
	if b := m.base(); b.Routed(p.Route) {
		if err := q.Answer(m, p, disk, deadline); b.Routed(p.Route) {
			return err
		}
	}
	return fmt.Errorf("%w: a read of %s, and the replica is of %s", codec.ErrRoute, p.Route, m.Route())
}

// One calls q.One. It returns false unless the replica has the given route both before and after
// the call. If it returns false, the caller must use Split and Answer.
func One(q Query, m Machine, route codec.Route, key uint64) bool {
	b := m.base()
	return b.Routed(route) && q.One(m, key) && b.Routed(route)
}

// Limits are the bounds of a read of one shard.
type Limits struct {
	Keys   int  // maximum of keys in a call to another node; 1 means exactly one
	Alone  bool // the read needs a call of its own: it may read the disk, or its answer may be large
	Bytes  int  // the estimated bytes of the read and its answer
	Answer int  // maximum number of bytes of the answer
	// Partial means that the answers of some shards are useful even if other shards fail. The query
	// names the shards that failed.
	Partial bool
	Skip    bool // the read omits shards that no living node can read
}

// Read is one running read. Its memory is reused after Release. A Query uses it only during a call.
type Read struct {
	IDs      []uint64
	Parts    []Part // by shard
	Route    Route
	Deadline time.Time
	Err      error // if set, the read fails with this error; Join only fills the known part of the answer and releases replicas
}

// readWordsMax bounds the words of a part that stay in the pool, because an answer may be large.
const readWordsMax = 16 << 10

var readPool = sync.Pool{New: func() any { return &Read{} }}

// NewRead returns a Read from the pool, and puts each id into the part of its shard.
func NewRead(ids []uint64, route Route, deadline time.Time) *Read {
	read := readPool.Get().(*Read)
	shards := int(route.Shards)
	read.IDs, read.Route, read.Deadline = ids, route, deadline
	read.Parts = slices.Grow(read.Parts[:0], shards)[:shards]
	for s := range read.Parts {
		p := &read.Parts[s]
		p.Shard, p.Route, p.Keys, p.At, p.Words = s, route.Of(s), p.Keys[:0], p.At[:0], p.Words[:0]
	}
	for i, id := range ids {
		s, key := route.KeyOf(id)
		p := &read.Parts[s]
		p.Keys, p.At = append(p.Keys, key), append(p.At, i)
	}
	return read
}

// Release returns the Read to the pool.
func (read *Read) Release() {
	for s := range read.Parts {
		if p := &read.Parts[s]; cap(p.Words) > readWordsMax {
			p.Words = nil
		}
	}
	read.IDs, read.Err = nil, nil
	readPool.Put(read)
}

// Part is one shard's part of a read. A shard with no key is not read.
type Part struct {
	Shard int
	Route codec.Route // the shard's route as the read knows it; a replica with another route refuses the Part
	Keys  []uint64
	At    []int   // the index of each key in Read.IDs; nil for a Part that another node or a disk answers
	Words []int64 // the answer, in a form of the query
	// Failed means that no replica answered. In a read with Limits.Skip, Skipped is set instead.
	Failed, Skipped bool
}

// Defaults implements the methods that few queries need. Queries embed it.
type Defaults struct{}

// Split implements Query.
func (Defaults) Split(*Read) {}

// One implements Query for reads in which Answer is just as fast.
func (Defaults) One(Machine, uint64) bool { return false }

// Join implements Query for reads of a single key.
func (Defaults) Join(*Read) bool { return false }

// AppendTo implements Query for reads that only have keys.
func (Defaults) AppendTo(dst []byte, _ *Part) []byte { return dst }

// AppendAnswer implements Query for answers in Part.Words, as varints.
func (Defaults) AppendAnswer(dst []byte, p *Part) ([]byte, error) {
	for _, word := range p.Words {
		dst = binary.AppendVarint(dst, word)
	}
	return dst, nil
}

// NoQuery is the result of Kind.ParseQuery for an unknown number. It sets r.Err and returns nil.
func NoQuery(number byte, r *wire.Reader) Query {
	r.Fail(fmt.Sprintf("query %d", number))
	return nil
}

// ErrOtherKind is returned for a query whose kind is not the kind of the shard.
var ErrOtherKind = fmt.Errorf("%w: a query of another kind than the shard", wire.ErrBadMessage)

// ParseWords parses n words.
func ParseWords(r *wire.Reader, n int) []int64 {
	if n > len(r.Rest) {
		r.Fail(fmt.Sprintf("%d words", n))
		return nil
	}
	words := make([]int64, n)
	for i := range words {
		words[i] = r.Int()
	}
	return words
}

// ParseCounted parses a count n and the size(n) words after it, and appends the count and the words
// to words. If n exceeds limit, it sets r.Err.
func ParseCounted(r *wire.Reader, words []int64, limit int, size func(n int) int) []int64 {
	n := r.Int()
	if n < 0 || n > int64(limit) {
		r.Fail(fmt.Sprintf("%d in a list, of at most %d,", n, limit))
		return words
	}
	return append(append(words, n), ParseWords(r, size(int(n)))...)
}

// Resize gives the Part n words with arbitrary values. It reuses the memory of Words.
func (p *Part) Resize(n int) { p.Words = slices.Grow(p.Words[:0], n)[:n] }

// AppendJSON appends the JSON of an answer.
func AppendJSON(dst []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(dst, text...), err
}

// ParseJSON parses the rest of r as the JSON of an answer.
func ParseJSON[T any](r *wire.Reader) (v T) {
	if err := json.Unmarshal(r.Rest, &v); err != nil {
		r.Fail(fmt.Sprintf("JSON that cannot be read: %v", err))
	}
	r.Rest = nil
	return v
}

// LimitsOfJSON returns the bounds of a read of one key whose answer is JSON.
func LimitsOfJSON() Limits {
	return Limits{Keys: 1, Alone: true, Bytes: jsonBytesHint, Answer: jsonBytesMax}
}

const (
	jsonBytesHint = 8 << 10  // estimates the JSON of an answer
	jsonBytesMax  = 16 << 20 // bounds it
)
