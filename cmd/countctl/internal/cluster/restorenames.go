package cluster

import (
	"fmt"
	"slices"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client"
)

// refuseIDs returns an error if the ids of a keyspace are texts in the backup and numbers in the cluster, or the other way
// round, or if the backup lacks the numbers of the texts.
func (r *restore) refuseIDs(k backup.Keyspace, there client.Keyspace, found bool) error {
	has := func(name string) bool {
		return slices.ContainsFunc(r.backup.Keyspaces, func(k backup.Keyspace) bool { return k.Name == name })
	}
	own, _ := k.Names()
	owner := k.Owner()
	_, exists := r.keyspace(owner)
	switch {
	case own != "" && !has(own):
		return fmt.Errorf("the ids of keyspace %s are texts, and the backup lacks their numbers, %s", k.Name, own)
	case k.Kind == backup.KindNames && !found && !(has(owner) && !exists): // else it is created with its owner
		return otherIDs(owner, "text")
	case k.Kind != backup.KindNames && found && k.IDs != there.IDs:
		return otherIDs(owner, k.IDs)
	}
	return nil
}

// otherIDs returns the error for a keyspace of the backup, with the given IDs, whose ids are of the other form in the cluster.
func otherIDs(keyspace, ids string) error {
	inBackup, there, how := "texts", "numbers", "formed with --ids "+keyspace+"=text"
	if ids == "" {
		inBackup, there, how = there, inBackup, "formed without --ids "+keyspace+"=text"
	}
	if how = "restore into a new cluster, " + how; !slices.Contains(builtinCounters, keyspace) {
		how = "drop it in the cluster, so that the restore creates it"
	}
	return fmt.Errorf("the ids of keyspace %s are %s in the backup and %s in the cluster: %s", keyspace, inBackup, there, how)
}
