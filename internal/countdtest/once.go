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
	// window is how many numbers below a producer's highest are remembered.
	window = 64
	// keyHorizon is how old a UUIDv7 key may be.
	keyHorizon = 10 * time.Minute
)

// producerAt identifies a producer in one shard.
type producerAt struct {
	keyspace string
	shard    int
	name     string
}

// producer holds the numbers that a shard has judged.
type producer struct {
	floor   uint64 // numbers below it are unknown: the producer was forgotten and returned
	highest uint64
	judged  map[uint64]fate
}

// fate is the decision about a write's part for one shard: apply it now, or answer as for
// its first try.
type fate uint8

const (
	fresh   fate = iota
	applied      // none of its ops was refused
	partly       // some of its ops were refused; which, is not known any more
	refused      // each of its ops was
	expired      // too old to be known
)

// keyAt names an Idempotency-Key.
type keyAt struct{ keyspace, key string }

// keyed is the record of a key.
type keyed struct {
	request [sha256.Size]byte
	judged  map[int]fate // by shard
}

// once is one write's part in exactly-once.
type once struct {
	fates map[int]fate // by shard
	mark  func(shard int, f fate)
}

// is reports whether every shard has one of these fates.
func (o *once) is(fates ...fate) bool {
	for _, f := range o.fates {
		if !slices.Contains(fates, f) {
			return false
		}
	}
	return true
}

// judgeLocked decides which parts of a write to apply. A status other than 0 refuses the
// whole write.
func (s *Server) judgeLocked(r *http.Request, k *keyspace, shards []int, body []byte) (o once, status int, refusal any) {
	key, name := r.Header.Get("Idempotency-Key"), r.Header.Get("Countd-Producer")
	seq, err := strconv.ParseUint(r.Header.Get("Countd-Seq"), 10, 64)
	switch {
	case key != "" && name != "":
		return o, 400, refuse("invalid_argument", "a key and a producer", "Idempotency-Key")
	case key != "":
		return s.judgeKeyLocked(r, keyAt{k.Name, key}, shards, body)
	case name != "" && err != nil:
		return o, 400, refuse("invalid_argument", "Countd-Seq: not an unsigned 64-bit integer", "Countd-Seq")
	}
	o = once{fates: map[int]fate{}, mark: func(int, fate) {}}
	for _, shard := range shards {
		o.fates[shard] = fresh
		if name != "" {
			o.fates[shard] = s.fateLocked(producerAt{k.Name, shard, name}, seq)
		}
	}
	if name != "" {
		o.mark = func(shard int, f fate) { s.noteLocked(producerAt{k.Name, shard, name}, seq, f) }
	}
	return o, 0, nil
}

// fateLocked decides about a number for one shard. For a forgotten producer it accepts only
// numbers above the highest.
func (s *Server) fateLocked(at producerAt, seq uint64) fate {
	p := s.mu.producers[at]
	if highest, gone := s.mu.forgotten[at]; p == nil && gone && seq <= highest {
		return expired
	}
	if p != nil && (seq < p.floor || seq <= p.highest && p.highest-seq >= window) {
		return expired
	}
	if p == nil {
		return fresh
	}
	return p.judged[seq]
}

func (s *Server) noteLocked(at producerAt, seq uint64, f fate) {
	p := s.mu.producers[at]
	if p == nil {
		p = &producer{judged: map[uint64]fate{}}
		if highest, gone := s.mu.forgotten[at]; gone {
			p.floor = highest + 1
		}
		s.mu.producers[at] = p
	}
	p.judged[seq] = f
	p.highest = max(p.highest, seq)
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
		known = &keyed{request: request, judged: map[int]fate{}}
		s.mu.keys[at] = known
	}
	if known.request != request {
		return o, 409, refuse("idempotency_conflict", "the key came with another body", "Idempotency-Key")
	}
	o = once{fates: map[int]fate{}, mark: func(shard int, f fate) { known.judged[shard] = f }}
	for _, shard := range shards {
		o.fates[shard] = known.judged[shard]
	}
	return o, 0, nil
}

// ForgetProducers forgets every producer except for its highest number in each shard, like a
// long idle time. It returns their names.
func (s *Server) ForgetProducers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.namesLocked()
	for at, p := range s.mu.producers {
		s.mu.forgotten[at] = p.highest
	}
	clear(s.mu.producers)
	return names
}

// Producers returns the names of all producers that are remembered.
func (s *Server) Producers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.namesLocked()
}

func (s *Server) namesLocked() []string {
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
