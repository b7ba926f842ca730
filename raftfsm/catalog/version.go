package catalog

import (
	"math"

	"github.com/countd/countd/raftfsm/codec"
)

// ClusterVersionMax is the highest cluster version that this program speaks.
const ClusterVersionMax = 5

// versionOfKinds is the first cluster version with other kinds of keyspaces than
// counters, and with Everywhere. An older program would take their entries for damage.
const versionOfKinds = 2

// versionOfColdRows is the first cluster version in which rows leave memory. An older
// program would take a snapshot that carries cold rows for damage, be it another node's
// or its own.
const versionOfColdRows = 3

// versionOfMaking is the first cluster version that makes channels and dots without a
// notice or a firing. An older program fails at these ops.
const versionOfMaking = 4

// VersionOfFloors is the first cluster version with floors of ops and columns. An older
// program fails at entries and commands with one.
const VersionOfFloors = 5

// VersionOfMembers is the first cluster version with members of columns. An older program
// fails at entries and snapshots that have them.
const VersionOfMembers = 5

// versionOfRestores is the first cluster version in which a restore makes a shard
// forget the requests of clients. An older program does not know that section of an
// entry.
const versionOfRestores = 5

// versionOfSharding is the first cluster version with Keyspace.Sharding. An older
// program fails at such a keyspace.
const versionOfSharding = 5

// versionOfMeaning is the first cluster version that compares keys by the meaning of
// their requests. An older program compares other bytes than were hashed.
const versionOfMeaning = 5

// SetVersionEntry raises the cluster version, which decides what commands and formats
// nodes may use. The version never falls, never exceeds what every node of the catalog
// speaks, and does not change while it is held.
type SetVersionEntry struct {
	Version int `json:"version"`
}

// HoldVersionEntry holds the cluster version or releases it.
type HoldVersionEntry struct {
	Held bool `json:"held"`
}

func (c *SetVersionEntry) apply(v *View) (Result, bool) {
	switch most := v.VersionMax(); {
	case c.Version == v.ClusterVersion:
		return Result{}, false
	case c.Version < v.ClusterVersion:
		return refused("the cluster version is %d and does not go down to %d", v.ClusterVersion, c.Version)
	case v.VersionHeld:
		return refused("the cluster version is held at %d", v.ClusterVersion)
	case c.Version > most:
		return refused("not all nodes speak cluster version %d: the highest of all is %d", c.Version, most)
	}
	v.ClusterVersion = c.Version
	return Result{}, true
}

func (c *HoldVersionEntry) apply(v *View) (Result, bool) {
	was := v.VersionHeld
	v.VersionHeld = c.Held
	return Result{}, was != c.Held
}

// Takes reports whether the cluster version allows keyspaces of a kind.
func (v *View) Takes(kind string) bool {
	known, ok := codec.KindOf(kind)
	return ok && (known == codec.KindCounters || v.ClusterVersion >= versionOfKinds)
}

// ColdRows reports whether the cluster version allows rows to leave memory.
func (v *View) ColdRows() bool { return v.ClusterVersion >= versionOfColdRows }

// TakesMaking reports whether the cluster version allows ops that make a channel or dot
// and change nothing else.
func (v *View) TakesMaking() bool { return v.ClusterVersion >= versionOfMaking }

// TakesFloors reports whether the cluster version allows floors of ops and columns.
func (v *View) TakesFloors() bool { return v.ClusterVersion >= VersionOfFloors }

// TakesMembers reports whether the cluster version allows members of columns.
func (v *View) TakesMembers() bool { return v.ClusterVersion >= VersionOfMembers }

// ComparesMeaning reports whether the cluster version allows RequestID.CompareMeaning.
func (v *View) ComparesMeaning() bool { return v.ClusterVersion >= versionOfMeaning }

// ForgetsClients reports whether the cluster version allows ByRestore with first.
func (v *View) ForgetsClients() bool { return v.ClusterVersion >= versionOfRestores }

// TakesSharding reports whether the cluster version allows Keyspace.Sharding. An older
// program fails when it reads one, so no node may propose one before.
func (v *View) TakesSharding() bool { return v.ClusterVersion >= versionOfSharding }

// TakesEverywhere reports whether the cluster version allows SetEverywhereEntry. An
// older program fails when it reads one, so no node may propose one before.
func (v *View) TakesEverywhere() bool { return v.ClusterVersion >= versionOfKinds }

// versionOfRelay is the first cluster version in which nodes relay writes. An older
// program does not know the call.
const versionOfRelay = 5

// Relays reports whether the cluster version lets nodes relay the writes of others.
func (v *View) Relays() bool { return v.ClusterVersion >= versionOfRelay }

// versionOfStreams is the first cluster version in which nodes send the appends of all
// groups on one connection. An older program closes such a connection.
const versionOfStreams = 5

// SharesAppends reports whether the cluster version lets a node send the appends of all
// its groups on one connection.
func (v *View) SharesAppends() bool { return v.ClusterVersion >= versionOfStreams }

// VersionMax returns the highest cluster version that all nodes speak, or
// ClusterVersion if there is no node.
func (v *View) VersionMax() int {
	if len(v.Nodes) == 0 {
		return v.ClusterVersion
	}
	most := math.MaxInt
	for _, node := range v.Nodes {
		most = min(most, node.VersionMax)
	}
	return most
}

// VersionOfTimelines is the first cluster version with outboxes of authors and groups of
// followees. An older program fails at their ops and snapshots.
const VersionOfTimelines = 5

// TakesTimelines reports whether the cluster version allows outboxes and groups.
func (v *View) TakesTimelines() bool { return v.ClusterVersion >= VersionOfTimelines }
