package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/countd/countd/client"
)

// User is a user of a cluster. A user's calls carry one of its tokens.
type User struct {
	Name   string      `json:"name"`
	Grants []Grant     `json:"grants"`
	Limits *UserLimits `json:"limits,omitempty"` // nil for none
	Tokens []UserToken `json:"tokens"`
	// NodesBehind names the nodes that did not confirm the change before the call returned.
	NodesBehind []string `json:"nodes_behind,omitempty"`
}

// Grant gives a role on keyspaces: reader, writer, ingest, metrics or admin. "*" stands for
// all keyspaces.
type Grant struct {
	Role      string   `json:"role"`
	Keyspaces []string `json:"keyspaces,omitempty"`
}

// UserLimits bound what a user may do per second on each node; 0 stands for no limit.
type UserLimits struct {
	Requests    int64 `json:"requests_per_second"`
	Ops         int64 `json:"ops_per_second"`
	Connections int64 `json:"connections_per_second"`
}

// UserToken is a token of a user. Only CreateToken returns its text.
type UserToken struct {
	ID          string   `json:"id"`
	Token       string   `json:"token,omitempty"`
	Created     string   `json:"created_at,omitempty"`
	Expires     string   `json:"expires_at,omitempty"` // "" for never
	NodesBehind []string `json:"nodes_behind,omitempty"`
}

// Users returns the users by name.
func (c Client) Users(ctx context.Context) ([]User, error) {
	return client.AskMember[[]User](ctx, c.c, get("/v1/users"), "users")
}

// User returns the user of a name.
func (c Client) User(ctx context.Context, name string) (User, error) {
	return client.Ask[User](ctx, c.c, get(namePath("users", name)))
}

// CreateUser creates a user. If the name is in use, it fails with status 409.
func (c Client) CreateUser(ctx context.Context, name string, grants []Grant, limits *UserLimits) (User, error) {
	return c.putUser(ctx, name, UserRights{grants, limits}, &UserRights{Grants: []Grant{}})
}

// ChangeUser calls change to change the grants and limits of a user. If somebody else changes the
// user at the same time, it calls change again with the new user.
func (c Client) ChangeUser(ctx context.Context, name string, change func(*User)) (User, error) {
	for try := 1; ; try++ {
		u, err := c.User(ctx, name)
		if err != nil {
			return User{}, err
		}
		was := UserRights{slices.Clone(u.Grants), u.Limits}
		if was.Limits != nil {
			was.Limits = new(*u.Limits)
		}
		change(&u)
		u, err = c.putUser(ctx, name, UserRights{u.Grants, u.Limits}, &was)
		var refused *client.Error
		if changed := errors.As(err, &refused) && refused.Status == http.StatusConflict && refused.Field == "was"; !changed || try == changeUserTriesMax {
			return u, err
		}
	}
}

// changeUserTriesMax bounds the tries of ChangeUser. A try fails only if another change of the user
// succeeds meanwhile. That is rare, because only people change users.
const changeUserTriesMax = 16

// UserRights are the grants and limits of a user. Limits is nil for no limits. UserRights
// without grants mean that the user does not exist.
type UserRights struct {
	Grants []Grant     `json:"grants"`
	Limits *UserLimits `json:"limits,omitempty"`
}

// UserChange is the body of a request to store a user. If Was is given, the user must have those
// rights.
type UserChange struct {
	UserRights
	Was *UserRights `json:"was,omitempty"`
}

// putUser stores the rights of a user if the user's current rights equal *was.
func (c Client) putUser(ctx context.Context, name string, rights UserRights, was *UserRights) (User, error) {
	request := UserChange{rights, was}
	return client.Ask[User](ctx, c.c, client.Call{Method: http.MethodPut, Path: namePath("users", name), Request: request, Write: true})
}

// DeleteUser deletes a user with all its tokens, and returns it. The client never
// retries this request.
func (c Client) DeleteUser(ctx context.Context, name string) (User, error) {
	return client.Ask[User](ctx, c.c, deleteOnce(namePath("users", name)))
}

// CreateToken creates a token for a user. If expiresIn is 0, the token does not expire. The client
// never retries this request.
func (c Client) CreateToken(ctx context.Context, user string, expiresIn time.Duration) (UserToken, error) {
	request := struct {
		ExpiresIn string `json:"expires_in,omitempty"`
	}{}
	if expiresIn > 0 {
		request.ExpiresIn = expiresIn.String()
	}
	return client.Ask[UserToken](ctx, c.c, client.Call{Method: http.MethodPost, Path: namePath("users", user) + "/tokens", Request: request, Write: true, Once: true})
}

// RevokeToken deletes a token of a user. It returns the nodes that did not confirm the deletion.
// The client never retries this request.
func (c Client) RevokeToken(ctx context.Context, user, id string) (behind []string, err error) {
	answer, err := client.Ask[UserToken](ctx, c.c, deleteOnce(namePath("users", user)+"/tokens/"+url.PathEscape(id)))
	return answer.NodesBehind, err
}

// AuditEvent is a line of a node's audit log.
type AuditEvent struct {
	Time       time.Time `json:"time"`
	Who        string    `json:"who"`             // name of the user; "" for nobody
	Token      string    `json:"token,omitempty"` // id of the token that the caller used
	From       string    `json:"from"`            // address of the caller
	What       string    `json:"what"`            // name of the call or command
	Target     string    `json:"target,omitempty"`
	Outcome    string    `json:"outcome"`              // ok, the code of an error, or the reason for the refusal
	Status     int       `json:"status,omitempty"`     // HTTP status
	Served     bool      `json:"served,omitempty"`     // --auth permissive allowed a call that enforce would have refused
	Suppressed uint64    `json:"suppressed,omitempty"` // number of earlier refusals with this outcome that were not logged
}

// Audit returns the last lines of the audit log of the server in use, at most limit lines.
func (c Client) Audit(ctx context.Context, limit int) ([]AuditEvent, error) {
	return client.AskMember[[]AuditEvent](ctx, c.c, get("/v1/admin/audit?limit="+strconv.Itoa(limit)), "events")
}
