package countdtest

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
)

const (
	// window is how many numbers below a producer's highest are told apart.
	window = 64
	// keyHorizon is how old a UUIDv7 key may be.
	keyHorizon = 10 * time.Minute
)

// producerAt names what one shard knows of a producer.
type producerAt struct {
	keyspace string
	shard    int
	name     string
}

// producer holds the numbers that a shard has applied.
type producer struct {
	highest uint64
	applied map[uint64]bool
}

// keyAt names an Idempotency-Key.
type keyAt struct{ keyspace, key string }

// keyed is what is known of a key.
type keyed struct {
	request [sha256.Size]byte
	applied map[int]bool // shards
}

// once is one write's part in exactly-once.
type once struct {
	fresh []int // shards that have not applied it
	mark  func(shard int)
}

// judge finds out what of a write is still to do. A status other than 0 refuses
// it whole. The server's lock is held.
func (s *Server) judgeLocked(r *http.Request, k *keyspace, shards []int, body []byte) (o once, status int, refusal any) {
	key, name := r.Header.Get("Idempotency-Key"), r.Header.Get("Countd-Producer")
	seq, err := strconv.ParseUint(r.Header.Get("Countd-Seq"), 10, 64)
	switch {
	case key != "" && name != "":
		return o, 400, refuse("invalid_argument", "a key and a producer", "Idempotency-Key")
	case key != "":
		return s.judgeKeyLocked(r, keyAt{k.Name, key}, shards, body)
	case name == "":
		return once{fresh: shards, mark: func(int) {}}, 0, nil
	case err != nil:
		return o, 400, refuse("invalid_argument", "Countd-Seq: not an unsigned 64-bit integer", "Countd-Seq")
	case s.mu.forgotten[name]:
		return o, 410, refuse("idempotency_expired", "the producer was forgotten", "Countd-Producer")
	}
	for _, shard := range shards {
		p := s.producerLocked(producerAt{k.Name, shard, name})
		if seq+window <= p.highest {
			return o, 410, refuse("idempotency_expired", "the number is below the window", "Countd-Seq")
		}
		if !p.applied[seq] {
			o.fresh = append(o.fresh, shard)
		}
	}
	o.mark = func(shard int) {
		p := s.producerLocked(producerAt{k.Name, shard, name})
		p.applied[seq] = true
		p.highest = max(p.highest, seq)
	}
	return o, 0, nil
}

func (s *Server) producerLocked(at producerAt) *producer {
	if s.mu.producers[at] == nil {
		s.mu.producers[at] = &producer{applied: map[uint64]bool{}}
	}
	return s.mu.producers[at]
}

func (s *Server) judgeKeyLocked(r *http.Request, at keyAt, shards []int, body []byte) (o once, status int, refusal any) {
	if id, err := uuid.Parse(at.key); err == nil && id.Version() == 7 {
		seconds, nanos := id.Time().UnixTime()
		if time.Since(time.Unix(seconds, nanos)) > keyHorizon {
			return o, 410, refuse("idempotency_expired", "the key is too old", "Idempotency-Key")
		}
	}
	request := sha256.Sum256(slices.Concat([]byte(r.Method+" "+r.URL.Path+"\n"), body))
	known := s.mu.keys[at]
	if known == nil {
		known = &keyed{request: request, applied: map[int]bool{}}
		s.mu.keys[at] = known
	}
	if known.request != request {
		return o, 409, refuse("idempotency_conflict", "the key came with another body", "Idempotency-Key")
	}
	for _, shard := range shards {
		if !known.applied[shard] {
			o.fresh = append(o.fresh, shard)
		}
	}
	o.mark = func(shard int) { known.applied[shard] = true }
	return o, 0, nil
}

// ForgetProducers refuses every producer known so far, as after a long idle
// time. It returns their names.
func (s *Server) ForgetProducers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for at := range s.mu.producers {
		if !s.mu.forgotten[at.name] {
			s.mu.forgotten[at.name] = true
			names = append(names, at.name)
		}
	}
	return names
}

// Producers returns the names of all producers that have written.
func (s *Server) Producers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for at := range s.mu.producers {
		if !slices.Contains(names, at.name) {
			names = append(names, at.name)
		}
	}
	return names
}

// shardOf is the shard of an id.
func (k *keyspace) shardOf(id uint64) int { return int(id % uint64(k.Shards)) }
