// Package catalog owns what the cluster agrees on: keyspaces, nodes, the placement of Raft
// groups, and the cluster version. Its state machine runs in a group of its own, Group.
//
// It never decides anything by itself: it applies a Command or refuses it, from the View
// before it alone. What should change is the controllers' affair.
//
// Invariant: a View never changes. Each command makes the next one, and View.check holds
// for all of them.
package catalog
