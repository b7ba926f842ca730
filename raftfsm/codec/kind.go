package codec

import "fmt"

// Kind is the kind of a shard. Log entries and snapshots carry the value.
type Kind uint8

// The kinds of shards.
const (
	KindCounters Kind = 1
	KindUnread   Kind = 3 // counters and cursors of users
	KindFeed     Kind = 4 // followees of users, and their posts that the users have seen
	KindBoard    Kind = 5 // notices and dots that all users share

	KindCatalog Kind = 2
	KindTest    Kind = 255 // only for tests
)

// kindNames has the names of kinds as keyspaces of the catalog use them.
var kindNames = [...]struct {
	name string
	kind Kind
}{{"counters", KindCounters}, {"unread", KindUnread}, {"feed", KindFeed}, {"board", KindBoard}, {"test", KindTest}}

// KindOf returns the kind that a keyspace of the catalog names, or false if this
// program does not know it.
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
