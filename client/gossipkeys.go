package client

import (
	"context"
	"net/http"
)

// GossipKeys are the keys with which nodes encrypt their gossip.
type GossipKeys struct {
	Nodes    []GossipKeyNode `json:"nodes"`
	Complete bool            `json:"complete"` // every node answered, and made the change
}

// GossipKeyNode is the keys of one node.
type GossipKeyNode struct {
	Node    string      `json:"node"`
	Answers bool        `json:"answers"`           // if false, the other fields are zero
	Keys    []GossipKey `json:"keys"`              // none if its gossip is not encrypted
	Refused string      `json:"refused,omitempty"` // why it made no change
}

// GossipKey names a key without showing it.
type GossipKey struct {
	ID      string `json:"id"`      // 16 hex digits
	Primary bool   `json:"primary"` // the node encrypts with it; it decrypts with all
}

// GossipKeys returns the keys of every node.
func (a Admin) GossipKeys(ctx context.Context) (GossipKeys, error) {
	return show[GossipKeys](ctx, a, "gossip/keys")
}

// ChangeGossipKey adds, uses or removes a key on every node. key is the key in base64 or,
// except to add it, its id. It may be repeated.
func (a Admin) ChangeGossipKey(ctx context.Context, action, key string) (GossipKeys, error) {
	request := struct {
		Action string `json:"action"`
		Key    string `json:"key"`
	}{action, key}
	return ask[GossipKeys](ctx, a.c, call{method: http.MethodPost, path: "/v1/admin/gossip/keys", request: request})
}
