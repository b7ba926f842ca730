package operate

import (
	"context"
	"time"

	"github.com/countd/countd/auth"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/strictjson"
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

func Users(_ context.Context, c *Call, _ *Nothing) (any, error) {
	users, err := auth.Users(c.Node)
	list := []clientadmin.User{}
	for i := range users {
		list = append(list, showUser(&users[i], nil))
	}
	return map[string]any{"users": list}, err
}

func User(_ context.Context, c *Call, _ *Nothing) (clientadmin.User, error) {
	u, err := auth.User(c.Node, c.Name)
	return showUser(&u, nil), err
}

// rightsOf returns the rights in a body. Package auth checks them.
func rightsOf(rights clientadmin.UserRights) (r catalog.UserRights) {
	for _, g := range rights.Grants {
		r.Grants = append(r.Grants, catalog.Grant(g))
	}
	if rights.Limits != nil {
		r.Limits = catalog.UserLimits(*rights.Limits)
	}
	return r
}

func PutUser(until context.Context, c *Call, body *clientadmin.UserChange) (clientadmin.User, error) {
	var was *catalog.UserRights
	if body.Was != nil {
		if body.Was.Grants == nil {
			return clientadmin.User{}, invalid("was.grants", strictjson.Missing)
		}
		was = new(rightsOf(*body.Was))
	}
	u, behind, err := auth.PutUser(until, c.Node, c.Name, rightsOf(body.UserRights), was)
	return showUser(&u, behind), err
}

func DeleteUser(until context.Context, c *Call, _ *Nothing) (clientadmin.User, error) {
	u, behind, err := auth.DeleteUser(until, c.Node, c.Name)
	return showUser(&u, behind), err
}

func CreateToken(until context.Context, c *Call, body *struct {
	ExpiresIn *string `json:"expires_in"`
}) (clientadmin.UserToken, error) {
	expiresIn := time.Duration(0)
	if body.ExpiresIn != nil {
		var err error
		if expiresIn, err = time.ParseDuration(*body.ExpiresIn); err != nil || expiresIn <= 0 || expiresIn > auth.ExpiresInMax {
			return clientadmin.UserToken{}, invalid("expires_in", auth.ExpiresInRule)
		}
	}
	t, text, behind, err := auth.AddToken(until, c.Node, c.Name, expiresIn)
	shown := showToken(&t)
	shown.Token, shown.NodesBehind = text, behind
	return shown, err
}

func RevokeToken(until context.Context, c *Call, _ *Nothing) (clientadmin.UserToken, error) {
	behind, err := auth.RemoveToken(until, c.Node, c.Name, c.Column)
	return clientadmin.UserToken{ID: c.Column, NodesBehind: behind}, err
}
