// Package admin implements the operators' part of countd's HTTP API for Go programs: nodes and
// groups of a cluster, rows on disk, snapshots, sources, users and tokens. countctl is built on
// it.
//
// It owns the types of these requests and answers, which the server uses too. It never opens a
// connection: package client sends the calls. A service that only counts and reads needs only
// package client.
//
// Invariant: a request that would act twice if it were repeated, such as a deletion or a restore,
// is sent once.
package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/countd/countd/client"
)

// Client makes the calls of operators. It is safe for concurrent use.
type Client struct{ c *client.Client }

// New returns a Client that uses the addresses, certificates, token and retries of c. The owner
// of c closes it.
func New(c *client.Client) Client { return Client{c} }

// Live returns nil if the process of a node answers, whether the node can serve or not. It needs
// no token.
func (c Client) Live(ctx context.Context) error {
	_, err := c.Raw(ctx, "/healthz")
	return err
}

// Version reads the server's version.
func (c Client) Version(ctx context.Context) (string, error) {
	return client.AskMember[string](ctx, c.c, get("/v1/version"), "version")
}

// Ready reports whether the node can serve. If the node cannot serve, the error is nil, and why is
// the node's reason. A draining or stopping node should get no new requests: for it, ready is true,
// and why says so. Ready sends one request to one node. If that node is not ready, the next call
// uses the next address.
func (c Client) Ready(ctx context.Context) (ready bool, why string, err error) {
	_, err = c.Raw(ctx, "/readyz")
	var refused *client.Error
	if errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable {
		return refused.Code == "draining", refused.Message, nil
	}
	return err == nil, "", err
}

// Raw returns the body that the server answers at a path, in any format. It sends one request.
func (c Client) Raw(ctx context.Context, path string) ([]byte, error) {
	return client.Ask[[]byte](ctx, c.c, client.Call{Method: http.MethodGet, Path: path, Once: true})
}

// SetEverywhere makes every node hold a replica of each shard of a keyspace, for local reads. If
// everywhere is false, only the voters hold replicas. SetEverywhere returns before the new replicas
// exist.
func (c Client) SetEverywhere(ctx context.Context, keyspace string, everywhere bool) (client.Keyspace, error) {
	request := map[string]bool{"everywhere": everywhere}
	return client.Ask[client.Keyspace](ctx, c.c, post(namePath("keyspaces", keyspace)+"/everywhere", request))
}

// SetLimits sets limits of a keyspace of counters. A limit that is nil stays, and 0 removes one. Shards refuse new
// rows above a limit within a second.
func (c Client) SetLimits(ctx context.Context, keyspace string, rows, bytes *uint64) (client.Keyspace, error) {
	request := map[string]*uint64{}
	if rows != nil {
		request["rows"] = rows
	}
	if bytes != nil {
		request["bytes"] = bytes
	}
	return client.Ask[client.Keyspace](ctx, c.c, post(namePath("keyspaces", keyspace)+"/limits", request))
}

// DropKeyspace drops a keyspace with all its rows, and returns its last state. The client sends the
// request once, because a repeat could drop a new keyspace of that name. If the error is
// client.ErrUnknown, list the keyspaces to find out whether the keyspace was dropped.
func (c Client) DropKeyspace(ctx context.Context, name string) (client.Keyspace, error) {
	return client.Ask[client.Keyspace](ctx, c.c, deleteOnce(namePath("keyspaces", name)))
}

// DropColumn drops a column of a keyspace with all its counts, and returns the changed
// keyspace. Like DropKeyspace, the client never retries it.
func (c Client) DropColumn(ctx context.Context, keyspace, column string) (client.Keyspace, error) {
	return client.Ask[client.Keyspace](ctx, c.c, deleteOnce(namePath("keyspaces", keyspace)+"/columns/"+url.PathEscape(column)))
}

func namePath(kind, name string) string { return "/v1/" + kind + "/" + url.PathEscape(name) }

func get(path string) client.Call { return client.Call{Method: http.MethodGet, Path: path} }

func post(path string, request any) client.Call {
	return client.Call{Method: http.MethodPost, Path: path, Request: request}
}

// deleteOnce returns a deletion that the client sends once, because a repeat might delete a new
// object of the same name.
func deleteOnce(path string) client.Call {
	return client.Call{Method: http.MethodDelete, Path: path, Write: true, Once: true}
}
