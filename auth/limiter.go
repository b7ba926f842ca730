package auth

import (
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// Limit is one of the limits of a user.
type Limit uint8

// The limits, each per second and node.
const (
	Requests    Limit = iota // calls of the HTTP API, commands of Redis
	Ops                      // ops of writes; a write without a list of ops counts as one op
	Connections              // HTTP connections, counted at the first request with a user's token; Redis connections, counted at AUTH
	limits
)

// String returns the limit's name, in metrics and answers.
func (l Limit) String() string { return [limits]string{"requests", "ops", "connections"}[l] }

// limiter holds the limits of a user on this node. It takes no lock.
type limiter struct {
	limits  catalog.UserLimits
	buckets [limits]bucket
	refused [limits]atomic.Uint64
}

// newLimiter returns a limiter for a user's limits. The new limiter continues the counts of
// refusals of the previous limiter, which may be nil.
func newLimiter(of catalog.UserLimits, previous *limiter) *limiter {
	l := &limiter{limits: of}
	l.buckets[Requests].perSec = of.Requests
	l.buckets[Ops].perSec = of.Ops
	l.buckets[Connections].perSec = of.Connections
	if previous != nil {
		for i := range l.refused {
			l.refused[i].Store(previous.refused[i].Load())
		}
	}
	return l
}

// bucket holds up to a second's worth of tokens. A batch that needs more tokens is admitted whole
// and owes the difference. Later calls are refused until the debt is paid.
type bucket struct {
	perSec int64 // 0 for no limit
	// full is the time at which the bucket is full again, in Unix nanoseconds. The bucket is
	// empty until one second before that.
	full atomic.Int64
}

// take removes n tokens, or returns how long the bucket stays empty.
func (b *bucket) take(n int, now time.Time) (wait time.Duration) {
	if b.perSec == 0 {
		return 0
	}
	at := now.UnixNano()
	for {
		full := b.full.Load()
		from := max(full, at)
		if owed := from - at - int64(time.Second); owed >= 0 {
			// If the clock was set back, do not lock the user out for the difference.
			if owed > int64(owedMax+time.Minute) { // more than any debt that Owe allows, even if now is slightly earlier than Owe's now
				b.full.CompareAndSwap(full, at)
				continue
			}
			return max(time.Duration(owed), 1)
		}
		if b.full.CompareAndSwap(full, from+int64(n)*int64(time.Second)/b.perSec) {
			return 0
		}
	}
}

// owedMax bounds the debt. It is above the debt of any batch: 10,000 ops at a limit of one per
// second.
const owedMax = 4 * time.Hour

// Take counts n against a limit of the caller. It returns 0 if the limit allows the call, or else
// how long to wait. The root token has no limit.
func (c *Caller) Take(l Limit, n int, now time.Time) (wait time.Duration) {
	if c.limiter == nil {
		return 0
	}
	if wait = c.limiter.buckets[l].take(n, now); wait > 0 {
		c.limiter.refused[l].Add(1)
	}
	return wait
}

// Owe counts n more against a limit that Take has allowed. The debt delays the caller's next calls.
func (c *Caller) Owe(l Limit, n int, now time.Time) {
	if c.limiter == nil || n <= 0 {
		return
	}
	b := &c.limiter.buckets[l]
	if b.perSec == 0 {
		return
	}
	for {
		full, at := b.full.Load(), now.UnixNano()
		owes := min(max(full, at)+int64(n)*int64(time.Second)/b.perSec, at+int64(time.Second+owedMax))
		if b.full.CompareAndSwap(full, max(full, owes)) { // keep a larger debt, because concurrent batches may together owe more than the bound
			return
		}
	}
}
