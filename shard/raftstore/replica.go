package raftstore

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// ErrNoValue is returned by Get for a key that was never set.
var ErrNoValue = errors.New("there is no value")

// Replica is one replica's part of the log: its entries, and a few values by key.
type Replica struct {
	log    *Log
	id     ReplicaID
	closed atomic.Bool

	requests sync.Pool // pool of *request
}

var (
	_ raft.LogStore          = (*Replica)(nil)
	_ raft.MonotonicLogStore = (*Replica)(nil)
)

// Replica returns a replica's part of the log, and creates it if necessary.
func (l *Log) Replica(id ReplicaID) (*Replica, error) {
	if !l.Has(id) {
		if err := l.submit(&request{id: id, kind: itemCreate, items: appendRange(nil, itemCreate, id, 0, 0)}); err != nil {
			return nil, err
		}
	}
	return &Replica{log: l, id: id}, nil
}

// Drop deletes a replica's entries and values. The same ReplicaID may be used again.
func (l *Log) Drop(id ReplicaID) error {
	if !l.Has(id) {
		return nil
	}
	return l.submit(&request{id: id, kind: itemDrop, items: appendReplica(nil, itemDrop, id)})
}

// IsMonotonic returns true, because the log allows no gaps. So raft deletes all entries when it
// installs a snapshot.
func (r *Replica) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (r *Replica) FirstIndex() (uint64, error) {
	first, _ := r.bounds()
	return first, nil
}

// LastIndex implements raft.LogStore.
func (r *Replica) LastIndex() (uint64, error) {
	_, last := r.bounds()
	return last, nil
}

func (r *Replica) bounds() (first, last uint64) {
	r.log.mu.RLock()
	defer r.log.mu.RUnlock()
	if x := r.log.mu.replicas[r.id]; x != nil {
		return x.first, x.last()
	}
	return 0, 0
}

// GetLog implements raft.LogStore.
func (r *Replica) GetLog(index uint64, entry *raft.Log) error {
	at, s := r.find(index)
	if s == nil {
		return raft.ErrLogNotFound
	}
	defer s.release()
	it, err := s.readEntry(at.address)
	if err == nil && (it.id != r.id || it.first != index || it.kind != itemEntry && it.kind != itemMove) {
		err = s.fail(damage("entry %d of %s is entry %d of %s", index, r.id, it.first, it.id))
	}
	if err == nil {
		*entry = it.entry()
	}
	return err
}

// find returns an entry's position and segment; the segment is nil if the log lacks the entry. The
// caller must release the segment.
func (r *Replica) find(index uint64) (position, *segment) {
	r.log.mu.RLock()
	defer r.log.mu.RUnlock()
	x := r.log.mu.replicas[r.id]
	if x == nil || !x.has(index) {
		return position{}, nil
	}
	at := x.positions[index-x.first]
	s := r.log.mu.segments[at.segment]
	s.refs.Add(1)
	return at, s
}

// StoreLog implements raft.LogStore.
func (r *Replica) StoreLog(entry *raft.Log) error { return r.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. It keeps no reference to the entries. After an error, the
// first entries may be stored.
func (r *Replica) StoreLogs(entries []*raft.Log) error {
	for len(entries) > 0 {
		q := r.request()
		q.kind, q.first = itemEntry, entries[0].Index
		n := 0
		for ; n < len(entries) && (n == 0 || len(q.items)+entryHeadMax+len(entries[n].Data)+len(entries[n].Extensions) <= batchBytesMax); n++ {
			if entries[n].Index != q.first+uint64(n) {
				return ErrGap
			}
			q.offsets = append(q.offsets, uint32(len(q.items)))
			q.items = appendEntry(q.items, r.id, entries[n])
		}
		if err := r.submit(q); err != nil {
			return err
		}
		r.giveBack(q)
		entries = entries[n:]
	}
	return nil
}

// DeleteRange implements raft.LogStore.
func (r *Replica) DeleteRange(first, last uint64) error {
	return r.submit(&request{
		id: r.id, kind: itemCut, first: first, last: last, items: appendRange(nil, itemCut, r.id, first, last),
	})
}

// Set stores a value durably.
func (r *Replica) Set(key, value []byte) error {
	return r.submit(&request{
		id: r.id, kind: itemSet, key: key, value: value, items: appendSet(nil, r.id, key, value),
	})
}

// Get returns a value, which the caller must not change, or ErrNoValue.
func (r *Replica) Get(key []byte) ([]byte, error) {
	r.log.mu.RLock()
	defer r.log.mu.RUnlock()
	if x := r.log.mu.replicas[r.id]; x != nil {
		if value, ok := x.values[string(key)]; ok {
			return value, nil
		}
	}
	return nil, ErrNoValue
}

// Close makes later changes of this replica fail with ErrClosed. The log stays open.
func (r *Replica) Close() { r.closed.Store(true) }

func (r *Replica) submit(q *request) error {
	if r.closed.Load() {
		return ErrClosed
	}
	return r.log.submit(q)
}

// requestBytesKept bounds the buffer that a pooled request keeps.
const requestBytesKept = 64 << 10

func (r *Replica) request() *request {
	if q, ok := r.requests.Get().(*request); ok {
		return q
	}
	return &request{id: r.id, done: make(chan error, 1)}
}

// giveBack returns an answered request to the pool.
func (r *Replica) giveBack(q *request) {
	if cap(q.items) <= requestBytesKept {
		q.items, q.offsets = q.items[:0], q.offsets[:0]
		r.requests.Put(q)
	}
}
