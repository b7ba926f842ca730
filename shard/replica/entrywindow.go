package replica

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// entriesKept is how many applied entries a replica remembers. Replicas of an idle
// group whose histories differ are rarely further apart; those of a busy one are
// compared by their marks.
const entriesKept = 128

// EntryMark tells one applied entry of a group's log from any other that could have
// the same index. Replicas of a group apply entries of the same term and CRC at each
// index, or they differ.
type EntryMark struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	CRC   uint32 `json:"crc"` // of the rest
}

// markOf uses another polynomial than entries do: those of shards end with their own
// CRC32C, so that all of one length have one CRC32C.
//
// The first configuration is marked without addresses. Each of the first voters writes it by
// itself (see Replica.bootstrap), with the addresses that its catalog has by then, and a node
// may have moved meanwhile. Every other entry is one leader's.
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

// entryWindow remembers the newest entries that were handed to a state machine.
// Between its first and its last index it has every entry that state machines get:
// raft keeps barriers and the first entry of a term from all of them alike.
type entryWindow struct {
	mu struct {
		sync.Mutex
		ring []EntryMark // grows to entriesKept
		next int         // of a full ring, the oldest
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

// rising returns the entries by index.
func (w *entryWindow) rising() []EntryMark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Concat(w.mu.ring[w.mu.next:], w.mu.ring[:w.mu.next])
}
