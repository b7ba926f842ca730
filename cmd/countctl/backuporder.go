package main

import (
	"cmp"
	"slices"
)

// backupRefers says which keyspaces hold numbers of others: a backup takes the one that
// refers before the other, and a restore brings it back behind the other. So what is
// referred to is in the backup, whatever is written while it is made. The other way
// round a cursor could stand beyond the last notice and hide the next ones, and a feed
// have seen posts that the author does not have.
var backupRefers = []struct{ from, to string }{
	{"unread", "board"}, // cursors to notices and firings
	{"feed", "users"},   // followees to their column posts
}

// inBackupOrder sorts keyspaces in the order of a backup. That of a restore is the
// reverse.
func inBackupOrder[K any](keyspaces []K, name func(K) string) {
	slices.SortStableFunc(keyspaces, func(a, b K) int { return cmp.Compare(backupRank(name(b)), backupRank(name(a))) })
}

// backupRank is 0 for a keyspace that refers to none, else one more than that of those
// that it refers to. There is no ring.
func backupRank(name string) (rank int) {
	for _, r := range backupRefers {
		if r.from == name {
			rank = max(rank, backupRank(r.to)+1)
		}
	}
	return rank
}
