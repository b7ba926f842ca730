package feed

import (
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/spill"
)

// The encodings of ops on groups and of snapshots with groups must not change, because they are on
// the disks of nodes.
func TestGroupBytesAreGolden(t *testing.T) {
	f := New(spill.Place{})
	feeds := feedEntry(1,
		Op{Kind: Follow, User: 7, Followees: []Followee{{2, 5}, {3, 6}, {9, 7}}},
		Op{Kind: PutGroup, User: 7, Group: "stars", Followees: []Followee{{ID: 2}, {ID: 9}}},
		Op{Kind: PutGroup, User: 8, Group: "Nobody"},
		Op{Kind: DropGroup, User: 7, Group: "none"},
	)
	rafttest.Golden(t, "entry-groups.bin", feeds.Data)
	f.Apply(feeds)
	rafttest.Golden(t, "snapshot-groups.bin", rafttest.Persisted(t, f))
}
