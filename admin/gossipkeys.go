package admin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// GossipKeyCall is the call by which a node is asked for its keys of gossip, and to change
// them.
const GossipKeyCall = "gossip-key"

// The actions of a GossipKeyChange.
const (
	GossipKeyAdd    = "add"    // decrypt with it too
	GossipKeyUse    = "use"    // encrypt with it
	GossipKeyRemove = "remove" // forget it
)

// GossipKeyChange is the body of GossipKeyCall. Without an action it only asks.
type GossipKeyChange struct {
	Action string `json:"action,omitempty"`
	ID     string `json:"id,omitempty"`
	Key    []byte `json:"key,omitempty"` // of add
}

// GossipKeyReport is the answer to GossipKeyCall.
type GossipKeyReport struct {
	Keys    []GossipKey `json:"keys"`              // after the change; none without encryption
	Refused string      `json:"refused,omitempty"` // why nothing was changed
}

// GossipKeyID returns the name of a key, which does not show the key: the first 8 bytes of its
// SHA-256 in hex.
func GossipKeyID(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:gossipKeyIDBytes])
}

const gossipKeyIDBytes = 8

// GossipKey names a key by its GossipKeyID.
type GossipKey struct {
	ID      string `json:"id"`
	Primary bool   `json:"primary"` // the node encrypts with it
}

// GossipKeyNode is the report of one node.
type GossipKeyNode struct {
	Node    string `json:"node"`
	Answers bool   `json:"answers"`
	GossipKeyReport
}

// ErrBadGossipKey is returned for a key that is neither in base64 nor the id of one.
var ErrBadGossipKey = errors.New("neither 16, 24 or 32 bytes in base64 nor the id of a key, 16 hexadecimal digits")

// ErrBadGossipAction is returned for an action that there is not.
var ErrBadGossipAction = errors.New("not one of add, use and remove")

// ParseGossipKeyChange checks a change. key is a key in base64 or, except to add it, its id.
func ParseGossipKeyChange(action, key string) (GossipKeyChange, error) {
	if action != GossipKeyAdd && action != GossipKeyUse && action != GossipKeyRemove {
		return GossipKeyChange{}, ErrBadGossipAction
	}
	if raw, err := hex.DecodeString(key); err == nil && len(raw) == gossipKeyIDBytes && action != GossipKeyAdd {
		return GossipKeyChange{Action: action, ID: key}, nil
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(key))
	if err != nil || len(raw) != 16 && len(raw) != 24 && len(raw) != 32 {
		return GossipKeyChange{}, ErrBadGossipKey
	}
	change := GossipKeyChange{Action: action, ID: GossipKeyID(raw)}
	if action == GossipKeyAdd {
		change.Key = raw
	}
	return change, nil
}

// GossipKeys returns the keys of each node that answers within a second.
func (a *Cluster) GossipKeys(ctx context.Context) ([]GossipKeyNode, error) {
	return a.askGossipKeys(ctx, GossipKeyChange{})
}

func (a *Cluster) askGossipKeys(ctx context.Context, change GossipKeyChange) ([]GossipKeyNode, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	request, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a change of gossip keys: %w", err)
	}
	view, answers := n.Catalog(), n.AskAll(ctx, GossipKeyCall, request)
	name := Names(view)
	nodes := []GossipKeyNode{}
	for _, key := range slices.Sorted(maps.Keys(view.Nodes)) {
		node := GossipKeyNode{Node: name[key], GossipKeyReport: GossipKeyReport{Keys: []GossipKey{}}}
		if answer, answers := answers[key]; answers {
			if err := json.Unmarshal(answer, &node.GossipKeyReport); err != nil {
				return nil, fmt.Errorf("cannot read the gossip keys of %s: %w", node.Node, err)
			}
			node.Answers = true
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// ChangeGossipKey changes the keys of all nodes. It changes none if one does not answer, or
// if nodes could not decrypt each other's gossip after it. If nodes fail after that, it
// returns how far it came; it may be repeated.
func (a *Cluster) ChangeGossipKey(ctx context.Context, change GossipKeyChange) ([]GossipKeyNode, error) {
	nodes, err := a.GossipKeys(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if why := n.forbids(change); why != "" {
			return nil, refusedf("%s %s; no key was changed", n.Node, why)
		}
	}
	return a.askGossipKeys(ctx, change)
}

// forbids returns why a change must not be made while a node is as it is, or "".
func (n *GossipKeyNode) forbids(change GossipKeyChange) string {
	at := slices.IndexFunc(n.Keys, func(k GossipKey) bool { return k.ID == change.ID })
	switch {
	case !n.Answers:
		return "does not answer, and would be without the change: start it again, or remove it from the cluster"
	case len(n.Keys) == 0:
		return "does not encrypt its gossip: start it with --gossip-key-file"
	case change.Action == GossipKeyUse && at < 0:
		return "does not have the key: add it first"
	case change.Action == GossipKeyRemove && at >= 0 && n.Keys[at].Primary:
		return "encrypts with the key: use another one first"
	}
	return ""
}
