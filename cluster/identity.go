package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/rpc"
)

const (
	identityFile       = "node.json"
	identityFormat     = 1
	identityUnreleased = 2  // format of an unreleased program; no later format may have this number
	identityRecovering = 3  // identityFormat of a node whose recovery is not complete, so that no program starts it
	nodeIDBytesMax     = 64 // must fit into gossip metadata, which has 512 bytes in all
	clusterIDBytes     = 16
	instanceBytes      = 4
	madeNodeIDBytes    = 4 // random bytes in a generated node id
	// identityBytesMax bounds a read of the file; a valid file has under 1,000 bytes.
	identityBytesMax = 4096
)

// Identity names the node and the cluster of a data directory. NodeID and Instance are created
// with the directory and never change, because Raft counts votes by them. ClusterID is written
// once, when the node has formed or joined a cluster.
type Identity struct {
	Format    int    `json:"format"`     // identityFormat or identityRecovering
	NodeID    string `json:"node_id"`    // 1..64 of A-Z a-z 0-9 . _ -
	Instance  string `json:"instance"`   // 4 random bytes in lower-case hex
	ClusterID string `json:"cluster_id"` // 16 random bytes in lower-case hex; "" until the node has a cluster
	// Founder is set if this node founded the cluster. Only the founder may ever bootstrap group 0.
	Founder bool `json:"founder,omitempty"`
	// Joining is the cluster to which a node without a cluster has sent a JoinRequest. That
	// cluster may have admitted the node although the answer was lost, so the node joins no other
	// cluster.
	Joining string `json:"joining,omitempty"`
	// Promised is the last promise of a node without a cluster: the keys, separated by commas, of
	// the nodes with which it agreed to form a cluster. The promise must survive a restart.
	Promised string `json:"promised,omitempty"`
}

// Key returns the key of this node. No two nodes ever have the same key: a wiped node that returns
// with its old id gets a new key. Raft identifies the node by its key.
func (id Identity) Key() string { return id.NodeID + "." + id.Instance }

// NodeOfKey returns the node id in the key s, or "" if s is no key.
func NodeOfKey(s string) string {
	at := len(s) - 2*instanceBytes - 1
	if at < 1 || s[at] != '.' || !ValidNodeID(s[:at]) || !validHex(s[at+1:], instanceBytes) {
		return ""
	}
	return s[:at]
}

// validHex reports whether s is n bytes in lower-case hex.
func validHex(s string, n int) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == n && hex.EncodeToString(raw) == s
}

// ValidZone reports whether s may name a zone: it has the form of a node id, or is empty for no
// zone.
func ValidZone(s string) bool { return s == "" || ValidNodeID(s) }

// ValidClusterName reports whether s may name a cluster: it has the form of a node id of up to
// rpc.ClusterNameBytesMax characters, or is empty for no name.
func ValidClusterName(s string) bool {
	return s == "" || ValidNodeID(s) && len(s) <= rpc.ClusterNameBytesMax
}

// ValidNodeID reports whether s is a valid node id.
func ValidNodeID(s string) bool { return wire.IsLabel(s, nodeIDBytesMax) }

// newIdentity returns the identity of a new node.
func newIdentity(nodeID string) Identity {
	if nodeID == "" {
		nodeID = "node-" + randomHex(madeNodeIDBytes)
	}
	return Identity{Format: identityFormat, NodeID: nodeID, Instance: randomHex(instanceBytes)}
}

func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails: crypto/rand would end the process
	return hex.EncodeToString(raw)
}

// parseIdentity parses the JSON object that writeIdentity writes. Every error is ErrBadIdentity or
// ErrUnreleased.
func parseIdentity(raw []byte) (Identity, error) {
	var id Identity
	if err := strictJSON(raw, identityBytesMax, &id); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrBadIdentity, err)
	}
	switch {
	case id.Format == identityUnreleased:
		return Identity{}, ErrUnreleased
	case id.Format != identityFormat && id.Format != identityRecovering:
		return Identity{}, fmt.Errorf("format %d, not %d: %w", id.Format, identityFormat, ErrBadIdentity)
	case !ValidNodeID(id.NodeID):
		return Identity{}, fmt.Errorf("node_id %q: %w", id.NodeID, ErrBadIdentity)
	case !validHex(id.Instance, instanceBytes):
		return Identity{}, fmt.Errorf("instance %q: %w", id.Instance, ErrBadIdentity)
	case id.ClusterID != "" && !validHex(id.ClusterID, clusterIDBytes):
		return Identity{}, fmt.Errorf("cluster_id %q: %w", id.ClusterID, ErrBadIdentity)
	case id.Joining != "" && !validHex(id.Joining, clusterIDBytes):
		return Identity{}, fmt.Errorf("joining %q: %w", id.Joining, ErrBadIdentity)
	case id.ClusterID == "" && id.Founder, id.ClusterID != "" && (id.Joining != "" || id.Promised != ""):
		return Identity{}, fmt.Errorf("fields that exclude each other: %w", ErrBadIdentity)
	}
	return id, nil
}

// strictJSON decodes exactly one JSON value of at most bytesMax bytes. It refuses fields that the
// type of into lacks.
func strictJSON(raw []byte, bytesMax int, into any) error {
	if len(raw) > bytesMax {
		return fmt.Errorf("over %d bytes", bytesMax)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("bytes after the value")
	}
	return nil
}

// readIdentity returns the identity at path.
func readIdentity(path string) (id Identity, err error) {
	raw, err := readChecked(path, identityBytesMax)
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read identity: %w", err)
	}
	if id, err = parseIdentity(raw); err != nil {
		return Identity{}, fmt.Errorf("cannot read identity %q: %w", path, err)
	}
	return id, nil
}

// writeIdentity replaces the file atomically and durably, because a node that lost its identity
// after a vote could vote twice.
func writeIdentity(path string, id Identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode identity: %w", err)
	}
	if err := replaceChecked(path, append(raw, '\n')); err != nil {
		return fmt.Errorf("cannot write identity: %w", err)
	}
	return nil
}
