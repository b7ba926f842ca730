// Package kinds lists the kinds of shards. A new kind gets its number and its name in package codec,
// a package of its own, and a line here.
package kinds

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/unread"
)

// All has every kind of shard. It is read only.
var All = raftfsm.Kinds{counters.Kind{}, unread.Kind{}, feed.Kind{}, board.Kind{}}
