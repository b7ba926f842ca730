package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	identityFile    = "node.json"
	identityFormat  = 1
	nodeIDBytesMax  = 64 // it stands in gossip metadata, where all is 512 bytes
	clusterIDBytes  = 16
	madeNodeIDBytes = 4 // of the random part of an id that nobody chose
	// identityBytesMax bounds what is read; a real file has under 200 bytes.
	identityBytesMax = 4096
)

// Identity says which node of which cluster a data directory is. It is made
// once and never changes: Raft counts votes by it.
type Identity struct {
	Format    int    `json:"format"`     // identityFormat
	NodeID    string `json:"node_id"`    // 1..64 of A-Z a-z 0-9 . _ -
	ClusterID string `json:"cluster_id"` // 16 random bytes in lower-case hex
}

// ValidNodeID tells whether s may name a node.
func ValidNodeID(s string) bool {
	if len(s) == 0 || len(s) > nodeIDBytesMax {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// newIdentity makes an identity for a directory that has none.
func newIdentity(nodeID string) Identity {
	if nodeID == "" {
		nodeID = "node-" + randomHex(madeNodeIDBytes)
	}
	return Identity{Format: identityFormat, NodeID: nodeID, ClusterID: randomHex(clusterIDBytes)}
}

func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(raw)
}

// parseIdentity reads what writeIdentity wrote. Every error is ErrBadIdentity.
func parseIdentity(raw []byte) (Identity, error) {
	if len(raw) > identityBytesMax {
		return Identity{}, fmt.Errorf("over %d bytes: %w", identityBytesMax, ErrBadIdentity)
	}
	var id Identity
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&id); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrBadIdentity, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Identity{}, fmt.Errorf("bytes after the object: %w", ErrBadIdentity)
	}
	cluster, err := hex.DecodeString(id.ClusterID)
	switch {
	case id.Format != identityFormat:
		return Identity{}, fmt.Errorf("format %d, not %d: %w", id.Format, identityFormat, ErrBadIdentity)
	case !ValidNodeID(id.NodeID):
		return Identity{}, fmt.Errorf("node_id %q: %w", id.NodeID, ErrBadIdentity)
	case err != nil || len(cluster) != clusterIDBytes || hex.EncodeToString(cluster) != id.ClusterID:
		return Identity{}, fmt.Errorf("cluster_id %q: %w", id.ClusterID, ErrBadIdentity)
	}
	return id, nil
}

func readIdentity(path string) (Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read identity: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, identityBytesMax+1))
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read identity: %w", err)
	}
	id, err := parseIdentity(raw)
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read identity %q: %w", path, err)
	}
	return id, nil
}

// writeIdentity makes the file whole and durable or not at all: a node that
// forgot its id after it voted could vote twice.
func writeIdentity(path string, id Identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode identity: %w", err)
	}
	tmp := path + ".tmp"
	if err := writeSynced(tmp, append(raw, '\n')); err != nil {
		return fmt.Errorf("cannot write identity: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("cannot write identity: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("cannot sync identity's directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("cannot sync identity's directory: %w", err)
	}
	return nil
}

func writeSynced(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}
