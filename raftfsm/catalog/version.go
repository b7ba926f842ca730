package catalog

import "math"

// ClusterVersionMax is the highest cluster version that this program supports.
//
// A command or format X that older programs cannot read needs a constant versionOfX here: the first
// cluster version with X. It also needs a method of View that reports whether the cluster version
// is high enough. A caller must check that before it uses X.
const ClusterVersionMax = versionOfGrowth

// versionOfGrowth is the first cluster version in which keyspaces may grow.
const versionOfGrowth = 2

// TakesGrowth reports whether nodes may propose the commands of growth.go.
func (v *View) TakesGrowth() bool { return v.ClusterVersion >= versionOfGrowth }

// SetVersionEntry raises the cluster version, which determines the commands and formats that nodes may
// use. The version never falls, never exceeds the VersionMax of any node, and does not change while it
// is held.
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

// VersionMax returns the highest cluster version that all nodes support, or ClusterVersion if there
// is no node.
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
