package rpc

import (
	"sync"
	"time"
)

const (
	// failureSpell is how long a peer must fail without pause before that is logged. It is longer
	// than a node takes to open its groups; other nodes may reach it too early meanwhile.
	failureSpell = 5 * time.Second
	// A spell ends after failureGap without a failure. raft retries a failing peer about once in
	// that time, or more often.
	failureGap = 10 * time.Second
	// failureEvery is the interval at which the log repeats that a peer still fails.
	failureEvery = time.Minute
	// failingPeersMax bounds the remembered peers: far more than a cluster has nodes.
	failingPeersMax = 256
)

// PeerFailures decides which failures to reach peers are logged. Every group that a node leads
// meets each failure several times a second. It is safe for concurrent use.
type PeerFailures struct {
	mu struct {
		sync.Mutex
		of map[string]failures // by address
	}
}

// failures is a spell of failures.
type failures struct {
	first, last time.Time
	told        time.Time // when it was last logged; zero for never
}

// ShouldLog records a failure and reports whether to log it.
func (p *PeerFailures) ShouldLog(peer string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, known := p.mu.of[peer]
	if !known || now.Sub(f.last) > failureGap {
		f = failures{first: now}
	}
	f.last = now
	told := now.Sub(f.first) >= failureSpell && now.Sub(f.told) >= failureEvery
	if told {
		f.told = now
	}
	if p.mu.of == nil || len(p.mu.of) >= failingPeersMax {
		p.mu.of = map[string]failures{} // at worst a failure is logged later
	}
	p.mu.of[peer] = f
	return told
}
