// Package kinds lists the kinds of shards, and the keyspaces that every cluster begins with. It reads
// which numbers of the catalog a shard of any kind shows. A new
// kind needs a number and a name in package codec, a package of its own, and a line here.
package kinds

import (
	"cmp"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/raftfsm/unread"
)

// All lists every kind of shard. It is read only.
var All = raftfsm.Kinds{counters.Kind{}, unread.Kind{}, feed.Kind{}, unread.BoardKind{}, names.Kind{}}

// CheckCursorIdle returns the time for which the cursors of an idle user are kept: idle, or the
// default if idle is 0. If idle is out of bounds, it returns an error.
func CheckCursorIdle(idle time.Duration) (time.Duration, error) {
	idle = cmp.Or(idle, unread.CursorIdleDefault)
	if idle < unread.CursorIdleMin || idle > unread.CursorIdleMax {
		return 0, fmt.Errorf("cursors kept for %v: not in %v…%v", idle, unread.CursorIdleMin, unread.CursorIdleMax)
	}
	return idle, nil
}
