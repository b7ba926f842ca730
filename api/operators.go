package api

import (
	"bytes"
	"context"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
)

// These are the properties of the calls with which operators change the cluster.
const (
	order       = exempt | takesChange | audited
	changeOrder = order | takesBody
)

// keyspaceRoutes are the calls about keyspaces and their columns.
func keyspaceRoutes() []route {
	const shape = takesWrite | audited
	admin := auth.Admin.Need()
	return []route{
		{"GET /v1/keyspaces", "keyspaces_list", does{takesRead, auth.Known.Need(), operated(operate.Keyspaces)}},
		{"POST /v1/keyspaces", "keyspaces_create", does{shape | takesBody, admin, operated(operate.CreateKeyspace, "name", "columns")}},
		{"DELETE /v1/keyspaces/{keyspace}", "keyspaces_drop", does{shape, admin, operated(operate.DropKeyspace)}},
		{"POST /v1/keyspaces/{keyspace}/columns", "keyspaces_columns", does{shape | takesBody, admin, operated(operate.AddColumns, "columns")}},
		{"DELETE /v1/keyspaces/{keyspace}/columns/{column}", "keyspaces_drop_column", does{shape, admin, operated(operate.DropColumn)}},
		{"POST /v1/keyspaces/{keyspace}/limits", "keyspaces_limits", does{shape | takesBody, admin, operated(operate.SetLimits)}},
		{"POST /v1/keyspaces/{keyspace}/everywhere", "keyspaces_everywhere", does{shape | takesBody, admin, operated(operate.SetEverywhere, "everywhere")}},
	}
}

// adminRoutes are the calls of operators about the cluster.
func adminRoutes() []route {
	status, operator := auth.Status.Need(), auth.Admin.Need()
	return []route{
		{"GET /v1/admin/nodes", "admin_nodes", does{exempt, status, operated(operate.Viewed(func(v *admin.View) any { return v.ClusterNodes }))}},
		{"POST /v1/admin/nodes/{node}/drain", "admin_node_drain", does{changeOrder, operator, operated(operate.ChangeNode(catalog.NodeDraining))}},
		{"POST /v1/admin/nodes/{node}/undrain", "admin_node_undrain", does{changeOrder, operator, operated(operate.ChangeNode(catalog.NodeActive))}},
		{"POST /v1/admin/nodes/{node}/remove", "admin_node_remove", does{changeOrder, operator, operated(operate.ChangeNode(catalog.NodeLeaving))}},
		{"GET /v1/admin/groups", "admin_groups", does{exempt | takesRead, status, operated(operate.Viewed(func(v *admin.View) any { return map[string]any{"groups": v.Groups} }))}},
		{"POST /v1/admin/groups/{group}/transfer", "admin_group_transfer", does{changeOrder, operator, operated(operate.Changes(operate.TransferGroup), "to")}},
		{"POST /v1/admin/groups/{group}/move", "admin_group_move", does{changeOrder, operator, operated(operate.Changes(operate.MoveGroup), "from", "to")}},
		{"GET /v1/admin/groups/{group}/snapshot", "admin_group_snapshot", does{exempt, operator, snapshotGroup}},
		{"POST /v1/admin/groups/{group}/restore", "admin_group_restore", does{exempt | takesStream | audited, operator, restoreGroup}},
		{"POST /v1/admin/keyspaces/{keyspace}/grow", "admin_keyspace_grow", does{changeOrder, operator, operated(operate.Grow)}},
		{"GET /v1/admin/digests", "admin_digests", does{exempt, status, operated(operate.Digests)}},
		{"GET /v1/admin/plan", "admin_plan", does{exempt, status, operated(operate.Plan)}},
		{"GET /v1/admin/cold", "admin_cold", does{exempt, status, operated(operate.Cold)}},
		{"POST /v1/admin/cold/migrate", "admin_cold_migrate", does{changeOrder, operator, operated(operate.MigrateCold)}},
		{"POST /v1/admin/cold/stop", "admin_cold_stop", does{changeOrder, operator, operated(operate.StopCold)}},
		{"GET /v1/admin/version", "admin_version", does{exempt, status, operated(operate.Viewed(func(v *admin.View) any { return v.Version }))}},
		{"POST /v1/admin/version", "admin_version_change", does{changeOrder, operator, operated(operate.Changes(operate.ChangeVersion))}},
		{"GET /v1/admin/audit", "admin_audit", does{exempt | takesCursor, operator, operated(operate.Audit)}},
	}
}

// sourceRoutes are the calls about sources.
func sourceRoutes() []route {
	operator := auth.Admin.Need()
	return []route{
		{"GET /v1/admin/sources", "admin_sources", does{exempt, operator, operated(operate.SaveSources)}},
		{"POST /v1/admin/sources", "admin_source_restore", does{changeOrder | takesSecret, operator, operatedRaw(operate.RestoreSource)}},
		{"GET /v1/sources", "sources_list", does{exempt, operator, operated(operate.ListSources)}},
		{"GET /v1/sources/{source}", "sources_get", does{exempt, operator, operated(operate.OfSource(operate.Sources.Get))}},
		{"PUT /v1/sources/{source}", "sources_put", does{changeOrder | takesSecret, operator, operatedRaw(operate.PutSource)}},
		{"DELETE /v1/sources/{source}", "sources_delete", does{order, operator, operated(operate.DeleteSource)}},
		{"POST /v1/sources/{source}/pause", "sources_pause", does{changeOrder, operator, operated(operate.OfSource(operate.Sources.Pause))}},
		{"POST /v1/sources/{source}/resume", "sources_resume", does{changeOrder, operator, operated(operate.OfSource(operate.Sources.Resume))}},
		{"POST /v1/sources/{source}/seek", "sources_seek", does{changeOrder, operator, operated(operate.SeekSource, "positions")}},
		{"POST /v1/sources/{source}/past", "sources_past", does{exempt | takesBody, operator, operated(operate.PastOfSource, "keyspace", "partition", "from")}},
		{"POST /v1/sources/{source}/rows", "sources_rows", does{exempt | takesBody, operator, operated(operate.RowsOfSource, "keyspace", "ids")}},
	}
}

// userRoutes are the calls about users and their tokens.
func userRoutes() []route {
	operator := auth.Admin.Need()
	return []route{
		{"GET /v1/users", "users_list", does{exempt, operator, operated(operate.Users)}},
		{"GET /v1/users/{name}", "users_get", does{exempt, operator, operated(operate.User)}},
		{"PUT /v1/users/{name}", "users_put", does{changeOrder, operator, operated(operate.PutUser, "grants")}},
		{"DELETE /v1/users/{name}", "users_delete", does{order, operator, operated(operate.DeleteUser)}},
		{"POST /v1/users/{name}/tokens", "users_tokens_create", does{changeOrder, operator, unstored(operated(operate.CreateToken))}},
		{"DELETE /v1/users/{name}/tokens/{id}", "users_tokens_revoke", does{order, operator, operated(operate.RevokeToken)}},
	}
}

// operated returns the handler of a call of an operator.
func operated[B, A any](run func(until context.Context, c *operate.Call, body *B) (A, error), required ...string) handler {
	return rare(func(until context.Context, s *Server, r *request, body *B) (A, error) {
		return run(until, s.operation(r), body)
	}, required...)
}

// operatedRaw is like operated, for a call that parses its body itself.
func operatedRaw[A any](run func(until context.Context, c *operate.Call, body []byte) (A, error)) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		until, cancel := context.WithDeadline(context.Background(), r.deadline)
		defer cancel()
		a, err := run(until, s.operation(r), bytes.Clone(ctx.Request.Body()))
		if err != nil {
			return err
		}
		return answerJSON(ctx, a)
	}
}

// operation returns the operate.Call of a request.
func (s *Server) operation(r *request) *operate.Call {
	return &operate.Call{
		Node: s.node(), Admin: s.cfg.Admin, Sources: s.cfg.Sources, Audit: s.cfg.Audit, Auth: s.cfg.Auth, Caller: r.caller, Version: s.cfg.Version,
		Name: string(r.name), Column: string(r.column), Limit: r.asked.limit, HasCursor: r.asked.hasAfter,
		Fresh: r.read.Consistency == shard.Linearizable || r.read.MaxStaleness > 0,
	}
}

// unstored returns a handler whose answer must not be cached.
func unstored(call handler) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
		return call(s, ctx, r)
	}
}
