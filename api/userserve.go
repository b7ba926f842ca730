package api

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/catalog"
)

// shownUser is a user as the API answers it.
type shownUser struct {
	Name   string          `json:"name"`
	Grants []catalog.Grant `json:"grants"`
	Limits *shownLimits    `json:"limits,omitempty"`
	Tokens []shownToken    `json:"tokens"`
	Behind []string        `json:"nodes_behind,omitempty"`
}

type shownLimits struct {
	Requests    int64 `json:"requests_per_second"`
	Ops         int64 `json:"ops_per_second"`
	Connections int64 `json:"connections_per_second"`
}

// shownToken is a token without its secret, or, as it is made, with it.
type shownToken struct {
	ID      string   `json:"id"`
	Token   string   `json:"token,omitempty"`
	Created string   `json:"created_at"`
	Expires string   `json:"expires_at,omitempty"`
	Behind  []string `json:"nodes_behind,omitempty"`
}

func showUser(u *catalog.User) shownUser {
	shown := shownUser{Name: u.Name, Grants: u.Grants, Tokens: []shownToken{}}
	if l := u.Limits; l != (catalog.UserLimits{}) {
		shown.Limits = &shownLimits{l.Requests, l.Ops, l.Connections}
	}
	for i := range u.Tokens {
		shown.Tokens = append(shown.Tokens, showToken(&u.Tokens[i]))
	}
	return shown
}

func showToken(t *catalog.Token) shownToken {
	at := func(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }
	shown := shownToken{ID: t.ID(), Created: at(t.Created)}
	if t.Expires != 0 {
		shown.Expires = at(t.Expires)
	}
	return shown
}

func (s *Server) listUsers(ctx *fasthttp.RequestCtx, _ *request) error {
	users, err := auth.Users(s.node())
	if err != nil {
		return err
	}
	list := struct {
		Users []shownUser `json:"users"`
	}{[]shownUser{}}
	for i := range users {
		list.Users = append(list.Users, showUser(&users[i]))
	}
	return answerJSON(ctx, list)
}

func getUser(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	u, err := auth.User(s.node(), string(r.name))
	if err != nil {
		return err
	}
	return answerJSON(ctx, showUser(&u))
}

func putUser(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	rights, was, err := r.decodeUser(ctx.Request.Body())
	if err != nil {
		return err
	}
	until, cancel := r.until()
	defer cancel()
	u, behind, err := auth.PutUser(until, s.node(), string(r.name), rights, was)
	return answerUser(ctx, &u, behind, err)
}

func deleteUser(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	u, behind, err := auth.DeleteUser(until, s.node(), string(r.name))
	return answerUser(ctx, &u, behind, err)
}

func answerUser(ctx *fasthttp.RequestCtx, u *catalog.User, behind []string, err error) error {
	if err != nil {
		return err
	}
	shown := showUser(u)
	shown.Behind = behind
	return answerJSON(ctx, shown)
}

func createToken(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	expiresIn, err := r.decodeToken(ctx.Request.Body())
	if err != nil {
		return err
	}
	until, cancel := r.until()
	defer cancel()
	t, text, behind, err := auth.AddToken(until, s.node(), string(r.name), expiresIn)
	if err != nil {
		return err
	}
	shown := showToken(&t)
	shown.Token, shown.Behind = text, behind
	ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
	return answerJSON(ctx, shown)
}

func revokeToken(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	until, cancel := r.until()
	defer cancel()
	behind, err := auth.RemoveToken(until, s.node(), string(r.name), string(r.column))
	if err != nil {
		return err
	}
	return answerJSON(ctx, struct {
		ID     string   `json:"id"`
		Behind []string `json:"nodes_behind,omitempty"`
	}{string(r.column), behind})
}
