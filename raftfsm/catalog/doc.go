// Package catalog owns what the cluster agrees on: keyspaces, nodes, the placement of Raft
// groups, sources, users, and the cluster version. Its state machine runs in a group of its
// own, Group.
//
// The package never decides what should change; controllers do. Whether it applies or refuses a
// Command depends only on the Command and the View before it.
//
// Invariant: a View never changes. Each command makes the next view, and all views obey
// the rules of check_test.go.
package catalog
