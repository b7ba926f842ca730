package api

import (
	"context"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm/catalog"
)

func showUser(u *catalog.User, behind []string) clientadmin.User {
	shown := clientadmin.User{Name: u.Name, Grants: []clientadmin.Grant{}, Tokens: []clientadmin.UserToken{}, NodesBehind: behind}
	for _, g := range u.Grants {
		shown.Grants = append(shown.Grants, clientadmin.Grant(g))
	}
	if l := clientadmin.UserLimits(u.Limits); l != (clientadmin.UserLimits{}) {
		shown.Limits = &l
	}
	for i := range u.Tokens {
		shown.Tokens = append(shown.Tokens, showToken(&u.Tokens[i]))
	}
	return shown
}

func showToken(t *catalog.Token) clientadmin.UserToken {
	at := func(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }
	shown := clientadmin.UserToken{ID: t.ID(), Created: at(t.Created)}
	if t.Expires != 0 {
		shown.Expires = at(t.Expires)
	}
	return shown
}

func listUsers(_ context.Context, s *Server, _ *request, _ *nothing) (any, error) {
	users, err := auth.Users(s.node())
	list := []clientadmin.User{}
	for i := range users {
		list = append(list, showUser(&users[i], nil))
	}
	return map[string]any{"users": list}, err
}

func getUser(_ context.Context, s *Server, r *request, _ *nothing) (clientadmin.User, error) {
	u, err := auth.User(s.node(), string(r.name))
	return showUser(&u, nil), err
}

// rightsOf returns the rights that a body gives. Package auth checks them.
func rightsOf(rights clientadmin.UserRights) (r catalog.UserRights) {
	for _, g := range rights.Grants {
		r.Grants = append(r.Grants, catalog.Grant(g))
	}
	if rights.Limits != nil {
		r.Limits = catalog.UserLimits(*rights.Limits)
	}
	return r
}

func putUser(until context.Context, s *Server, r *request, body *clientadmin.UserChange) (clientadmin.User, error) {
	var was *catalog.UserRights
	if body.Was != nil {
		if body.Was.Grants == nil {
			return clientadmin.User{}, invalid("was.grants", missing)
		}
		was = new(rightsOf(*body.Was))
	}
	u, behind, err := auth.PutUser(until, s.node(), string(r.name), rightsOf(body.UserRights), was)
	return showUser(&u, behind), err
}

func deleteUser(until context.Context, s *Server, r *request, _ *nothing) (clientadmin.User, error) {
	u, behind, err := auth.DeleteUser(until, s.node(), string(r.name))
	return showUser(&u, behind), err
}

// unstored returns a call whose answer no cache may keep.
func unstored(call handler) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
		return call(s, ctx, r)
	}
}

func createToken(until context.Context, s *Server, r *request, body *struct {
	ExpiresIn *string `json:"expires_in"`
}) (clientadmin.UserToken, error) {
	expiresIn := time.Duration(0)
	if body.ExpiresIn != nil {
		var err error
		if expiresIn, err = time.ParseDuration(*body.ExpiresIn); err != nil || expiresIn <= 0 || expiresIn > auth.ExpiresInMax {
			return clientadmin.UserToken{}, invalid("expires_in", auth.ExpiresInRule)
		}
	}
	t, text, behind, err := auth.AddToken(until, s.node(), string(r.name), expiresIn)
	shown := showToken(&t)
	shown.Token, shown.NodesBehind = text, behind
	return shown, err
}

func revokeToken(until context.Context, s *Server, r *request, _ *nothing) (clientadmin.UserToken, error) {
	behind, err := auth.RemoveToken(until, s.node(), string(r.name), string(r.column))
	return clientadmin.UserToken{ID: string(r.column), NodesBehind: behind}, err
}
