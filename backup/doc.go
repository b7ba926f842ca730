// Package backup takes backups of a cluster, and keeps them in archives. It owns the order in which a backup reads a
// cluster, the manifest that describes what was read, and the files of an archive. It reads the cluster through the
// interface Cluster, which countctl implements over HTTP, and writes an archive through the interface Target.
//
// It never writes to a cluster, and never interprets a snapshot.
//
// Invariant: a manifest names each id of each of its keyspaces in exactly one file, and everything that was
// acknowledged before the backup began is in these files. In an archive, all that a manifest names can be read,
// and is as it was written, or an error says that it is not; see DESIGN.md.
package backup
