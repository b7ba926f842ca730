package cluster

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

const (
	metaVersion = 1
	// metaBytesMax is memberlist's bound on the metadata of a node.
	metaBytesMax = 512
	// AddrBytesMax bounds an address that a node announces. So two addresses and the other fields
	// fit into metaBytesMax.
	AddrBytesMax = 160
	// ExpectMax bounds --bootstrap-expect: a cluster starts with a few nodes and
	// then grows by joins.
	ExpectMax       = 32
	programBytesMax = 32 // a longer program version is cut off
)

// MemberState is the state that a node announces. Later versions may add values.
type MemberState uint8

// The states of a member.
const (
	MemberStarting MemberState = iota // not ready, or without a cluster yet
	MemberServing                     // serving requests
	MemberStopping                    // handing over its leaderships, before it ends
)

func (s MemberState) String() string {
	switch s {
	case MemberStarting:
		return "starting"
	case MemberServing:
		return "serving"
	case MemberStopping:
		return "stopping"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Member is a node as gossip knows it. All fields are hints: they may be out of date, and a living
// member may be unreachable from this node.
type Member struct {
	Key  string // key of the node, which identifies the member
	Name string // the node id
	// ClusterID is empty for a member that has no cluster yet.
	ClusterID   string
	ClusterName string // --cluster-name; empty if not set
	Zone        string // empty for none
	HTTPAddr    string // HOST:PORT as announced
	ClusterAddr string // HOST:PORT as announced
	GossipAddr  string // IP:PORT
	Version     string // the program's version, for people
	VersionMax  uint16 // highest cluster version that the program supports
	Expect      uint8  // --bootstrap-expect of a member without a cluster
	State       MemberState

	Alive bool
	// Since is the time since which Alive has its present value. For a dead member, it is the time
	// of the member's stop message or, without one, of its last answer to a probe of this process.
	// For a living member, it is the time when this process noticed that the member was alive.
	// Since is a monotonic time of this process, so it does not depend on the member's clock.
	Since time.Time
}

// errBadMember is returned for a member's data that cannot be decoded.
var errBadMember = errors.New("not the data of a member")

// check returns an error if m cannot be announced.
func (m *Member) check() error {
	switch {
	case NodeOfKey(m.Key) == "":
		return fmt.Errorf("%w: key %q", errBadMember, m.Key)
	case m.Name != NodeOfKey(m.Key):
		return fmt.Errorf("%w: name %q of key %q", errBadMember, m.Name, m.Key)
	case m.ClusterID != "" && !validHex(m.ClusterID, clusterIDBytes):
		return fmt.Errorf("%w: cluster id %q", errBadMember, m.ClusterID)
	case !ValidClusterName(m.ClusterName):
		return fmt.Errorf("%w: cluster name %q", errBadMember, m.ClusterName)
	case !ValidZone(m.Zone):
		return fmt.Errorf("%w: zone %q", errBadMember, m.Zone)
	case len(m.HTTPAddr) > AddrBytesMax || len(m.ClusterAddr) > AddrBytesMax:
		return fmt.Errorf("%w: an address of over %d bytes", errBadMember, AddrBytesMax)
	case m.Expect > ExpectMax:
		return fmt.Errorf("%w: expects %d nodes, over %d", errBadMember, m.Expect, ExpectMax)
	}
	return nil
}

// The layout of a member's metadata. Gossip carries the key and the gossip address separately.
//
//	┌───────────┬───────┬────────┬─────────────┬────────────┬──────────────────────────────┐
//	│ version 1 │ state │ expect │ version max │ cluster id │ zone, program, HTTP address, │
//	│  1 byte   │   1   │   1    │ 2, big end. │  16, or 0s │ cluster address, its name    │
//	└───────────┴───────┴────────┴─────────────┴────────────┴──────────────────────────────┘
//
// Each of the last five fields is a length of one byte, followed by that many bytes. A reader
// ignores bytes after the last field, which a later version may add. So nodes of two versions see
// each other during an upgrade.
const metaHeadBytes = 5 + clusterIDBytes

// appendMeta appends the metadata of m to dst. m must pass check.
func appendMeta(dst []byte, m *Member) []byte {
	dst = append(dst, metaVersion, byte(m.State), m.Expect)
	dst = binary.BigEndian.AppendUint16(dst, m.VersionMax)
	var id [clusterIDBytes]byte
	_, _ = hex.Decode(id[:], []byte(m.ClusterID)) // cannot fail after check; an empty id leaves zeros
	dst = append(dst, id[:]...)
	program := m.Version[:min(len(m.Version), programBytesMax)]
	for _, s := range []string{m.Zone, program, m.HTTPAddr, m.ClusterAddr, m.ClusterName} {
		dst = append(append(dst, byte(len(s))), s...)
	}
	return dst
}

// parseMember parses the metadata of a member. Every error is errBadMember.
func parseMember(key, gossipAddr string, meta []byte) (Member, error) {
	if len(meta) > metaBytesMax || len(meta) < metaHeadBytes || meta[0] != metaVersion {
		return Member{}, fmt.Errorf("%w: %d bytes of metadata", errBadMember, len(meta))
	}
	m := Member{
		Key: key, Name: NodeOfKey(key), GossipAddr: gossipAddr,
		State: MemberState(meta[1]), Expect: meta[2], VersionMax: binary.BigEndian.Uint16(meta[3:]),
	}
	if id := [clusterIDBytes]byte(meta[5:]); id != [clusterIDBytes]byte{} {
		m.ClusterID = hex.EncodeToString(id[:])
	}
	rest := meta[metaHeadBytes:]
	for _, field := range []*string{&m.Zone, &m.Version, &m.HTTPAddr, &m.ClusterAddr, &m.ClusterName} {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return Member{}, fmt.Errorf("%w: metadata ends early", errBadMember)
		}
		*field, rest = string(rest[1:1+int(rest[0])]), rest[1+int(rest[0]):]
	}
	if len(m.Version) > programBytesMax {
		return Member{}, fmt.Errorf("%w: version of over %d bytes", errBadMember, programBytesMax)
	}
	return m, m.check()
}
