// Package backup takes backups of a cluster. It owns the order in which a backup reads a cluster, and the
// manifest that describes what was read. It reads the cluster through the interface Cluster, which countctl
// implements over HTTP.
//
// It never writes to a cluster, and never interprets a snapshot.
//
// Invariant: a manifest names each id of each of its keyspaces in exactly one file, and everything that was
// acknowledged before the backup began is in these files.
package backup
