package codec

import "fmt"

// Kind is what a shard holds. The values stand in log entries and snapshots.
type Kind uint8

// The kinds of shards.
const (
	KindCounters Kind = 1
	KindUnread   Kind = 3 // counters and cursors of users
	KindFeed     Kind = 4 // what users saw of those that they follow
	KindBoard    Kind = 5 // notices and dots that are everybody's

	KindCatalog Kind = 2
)

// kindNames are the kinds as keyspaces of the catalog name them.
var kindNames = [...]struct {
	name string
	kind Kind
}{{"counters", KindCounters}, {"unread", KindUnread}, {"feed", KindFeed}, {"board", KindBoard}}

// KindOf returns the kind of a keyspace by its name, or false for none that this
// program knows.
func KindOf(name string) (Kind, bool) {
	for _, k := range kindNames {
		if k.name == name {
			return k.kind, true
		}
	}
	return 0, false
}

func (k Kind) String() string {
	for _, known := range kindNames {
		if known.kind == k {
			return known.name
		}
	}
	return fmt.Sprintf("kind %d", uint8(k))
}
