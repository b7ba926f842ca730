package backup

import (
	"cmp"
	"slices"
)

// backupRefers lists which keyspaces refer to others. A backup copies the referring keyspace
// first, and a restore restores it last. So the backup contains everything that is referred
// to, even if there are writes meanwhile. In the other order a cursor could be beyond the
// last notice and hide the next ones, and a feed could mark posts as seen that the author
// does not have.
var backupRefers = []struct{ from, to string }{
	{"unread", "board"}, // cursors to notices and firings
	{"feed", "users"},   // followees to their column posts
}

// inBackupOrder sorts keyspaces in the order of a backup. A restore uses the reverse order.
func inBackupOrder[K any](keyspaces []K, name func(K) string) {
	slices.SortStableFunc(keyspaces, func(a, b K) int { return cmp.Compare(backupRank(name(b)), backupRank(name(a))) })
}

// backupRank returns 0 for a keyspace that refers to none, otherwise one more than the
// highest rank that it refers to. There is no cycle.
func backupRank(name string) (rank int) {
	for _, r := range backupRefers {
		if r.from == name {
			rank = max(rank, backupRank(r.to)+1)
		}
	}
	return rank
}
