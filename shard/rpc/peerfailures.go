package rpc

import (
	"sync"
	"time"
)

const (
	// failureSpell is how long a peer must keep failing before a failure is logged. A starting node
	// refuses connections until it has opened its groups, which takes less time.
	failureSpell = 5 * time.Second
	// A spell ends after failureGap without a failure. raft retries a failing peer about as often
	// or more often, so that a spell lasts as long as the peer fails.
	failureGap = 10 * time.Second
	// failureEvery is the interval between two log lines about a peer that still fails.
	failureEvery = time.Minute
	// failingPeersMax bounds the remembered peers. A cluster has far fewer nodes.
	failingPeersMax = 256
)

// PeerFailures decides which failures to reach peers are logged. Without it, every led group would
// log a failure several times per second. It is safe for concurrent use.
type PeerFailures struct {
	mu struct {
		sync.Mutex
		of map[string]failures // by address
	}
}

// failures is a series of failures without a pause of failureGap.
type failures struct {
	first, last time.Time
	told        time.Time // when a failure was last logged; zero for never
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
		p.mu.of = map[string]failures{} // forgetting all peers only delays log lines
	}
	p.mu.of[peer] = f
	return told
}
