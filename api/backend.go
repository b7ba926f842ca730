package api

import (
	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/names"
)

// Backend is the node that the API serves; *shard.Node implements it. Any goroutine may call any
// method at any time. A method keeps none of its arguments, and a result never changes after the
// method has returned.
type Backend interface {
	// The methods of Node run queries and writes.
	inbox.Node
	operate.Node
	// Ready returns nil if every group can serve, and otherwise the reason.
	Ready() error
}

// node combines a Backend with the unread numbers, timelines and names that read from it.
type node struct {
	Backend
	names     *names.Names
	unread    *inbox.Numbers
	timelines *inbox.Timelines
}
