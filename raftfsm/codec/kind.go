package codec

import "fmt"

// Kind is the kind of a shard. Log entries and snapshots carry the value.
type Kind uint8

// The kinds of shards.
const (
	KindCounters Kind = 1
	KindUnread   Kind = 3 // counters and cursors of users
	KindFeed     Kind = 4 // followees of users, and how many posts of each the user has seen
	KindBoard    Kind = 5 // notices and dots that all users share
	KindNames    Kind = 6 // the number of each text id

	KindCatalog Kind = 2
	KindTest    Kind = 255 // only for tests
)

// kindNames maps the kinds to the names that keyspaces in the catalog use.
var kindNames = [...]struct {
	name string
	kind Kind
}{{"counters", KindCounters}, {"unread", KindUnread}, {"feed", KindFeed}, {"board", KindBoard}, {"names", KindNames}, {"test", KindTest}}

// KindOf returns the kind with a name from the catalog. It returns false if this program does not
// know the kind.
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
