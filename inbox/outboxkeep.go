package inbox

import (
	"cmp"
	"time"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/tiering"
)

// OutboxKeep bounds the outbox of an author. A post whose id is a text, or contains no time, never becomes
// too old.
type OutboxKeep struct {
	Posts  int              // maximal number of posts, 1 to counters.OutboxPostsMax; 0 for OutboxPostsDefault
	Layout tiering.IDLayout // layout of posts' ids
	For    time.Duration    // maximal age of a post, by the time in its id; 0 for OutboxKeepDefault
}

// These are the defaults of OutboxKeep, and the bounds of OutboxKeep.For.
const (
	OutboxPostsDefault = 10_000
	OutboxKeepDefault  = 30 * 24 * time.Hour
	OutboxKeepMin      = time.Minute
	OutboxKeepMax      = 100 * 365 * 24 * time.Hour
)

func (k *OutboxKeep) limits() counters.OutboxLimits {
	limits := counters.OutboxLimits{Posts: cmp.Or(k.Posts, OutboxPostsDefault)}
	if k.Layout.Unit <= 0 {
		return limits
	}
	limits.Keep = max(1, uint64(cmp.Or(k.For, OutboxKeepDefault)/k.Layout.Unit))
	limits.Shift, limits.UnitMicros = uint8(k.Layout.Shift), uint64(k.Layout.Unit/time.Microsecond)
	limits.Epoch, limits.First = k.Layout.Epoch, k.Layout.First()
	return limits
}
