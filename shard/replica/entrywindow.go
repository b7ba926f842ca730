package replica

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// entriesKept is the number of applied entries that a replica remembers.
const entriesKept = 128

// EntryMark identifies an applied entry. All replicas of a group must apply entries with the same
// term and CRC at each index.
type EntryMark struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	CRC   uint32 `json:"crc"` // CRC of type, data and extensions
}

// markOf returns the mark of an entry. The mark's CRC is not CRC32C: a shard's entry ends with its
// own CRC32C, so all entries of one length would have the same one.
//
// markOf ignores the addresses in the first configuration. Each of the first voters writes that
// entry itself (see Replica.bootstrap), with the addresses in its own catalog. Two of them may differ,
// because a node's address may change. Every other entry comes from one leader.
func markOf(e *raft.Log) EntryMark {
	data := e.Data
	if e.Index == 1 && e.Type == raft.LogConfiguration {
		first := raft.DecodeConfiguration(data)
		for i := range first.Servers {
			first.Servers[i].Address = ""
		}
		data = raft.EncodeConfiguration(first)
	}
	var head [9]byte
	head[0] = byte(e.Type)
	binary.LittleEndian.PutUint64(head[1:], uint64(len(data)))
	sum := crc32.ChecksumIEEE(head[:])
	sum = crc32.Update(sum, crc32.IEEETable, data)
	return EntryMark{e.Index, e.Term, crc32.Update(sum, crc32.IEEETable, e.Extensions)}
}

// entryWindow remembers the newest entries that the state machine received. Between its first and
// last index it has every entry that a state machine receives. (raft does not pass barriers and
// the first entry of a term to state machines.)
type entryWindow struct {
	mu struct {
		sync.Mutex
		ring []EntryMark // grows to entriesKept
		next int         // position of the oldest mark, once the ring is full
	}
}

func (w *entryWindow) note(entries []*raft.Log) {
	entries = entries[max(0, len(entries)-entriesKept):]
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range entries {
		mark := markOf(e)
		if len(w.mu.ring) < entriesKept {
			w.mu.ring = append(w.mu.ring, mark)
			continue
		}
		w.mu.ring[w.mu.next] = mark
		w.mu.next = (w.mu.next + 1) % entriesKept
	}
}

func (w *entryWindow) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.ring, w.mu.next = nil, 0
}

func (w *entryWindow) rising() []EntryMark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Concat(w.mu.ring[w.mu.next:], w.mu.ring[:w.mu.next])
}
