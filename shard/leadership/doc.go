// Package leadership owns what a node does as the leader of groups, and how other nodes reach a
// leader.
//
//   - Prover proves that this node leads a group, and asks leaders for the commit index that a
//     replica must apply before it may answer a read. It never relies on heartbeats or time.
//   - CatalogClient sends changes to the catalog's leader and waits until nodes have applied them.
//     Maintenance keeps the catalog's record of this node and the built-in keyspaces up to date.
//   - Membership changes the members of the groups led here, step by step, to what the catalog
//     wants, and hands groups over.
//   - Growth takes the steps by which the shards of this node split. Each step follows from the
//     catalog and from the log of the group. Growth remembers only for how long an attempt has been
//     under way, and what it need not repeat. So a new leader or process continues any growth.
//
// This package never answers a read, decides which node gets a replica, or opens or deletes a
// replica.
//
// Invariants: a call for a group's index returns an index at or above every write that was
// acknowledged before the call began. No change of unknown outcome is reported as failed. This node
// confirms that a replica was removed only after it has proved two facts: it leads the group, and
// no configuration, committed or not, has the replica.
package leadership
