package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// The errors of changes of users.
var (
	// ErrNoUser is returned when no user has the name.
	ErrNoUser = errors.New("no such user")
	// ErrNoToken is returned when the user has no token with the id.
	ErrNoToken = errors.New("the user has no such token")
	// ErrUserChanged is returned if the user has changed since the caller of the change read it.
	ErrUserChanged = errors.New("the user is another one, or was changed meanwhile")
	// ErrNoCatalog is returned while a node has no catalog.
	ErrNoCatalog = errors.New("this node does not know its cluster yet")
)

// FieldError is returned for an invalid value of a field of a user.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

const (
	// LimitMax bounds a limit of a user. No node reaches it.
	LimitMax = 1_000_000_000
	// ExpiresInMax bounds the life of a token that expires.
	ExpiresInMax = 10 * 365 * 24 * time.Hour
	// ExpiresInRule is the rule for the life of a token.
	ExpiresInRule = "not a duration above 0 and up to 87600h, such as 2160h"
)

// Users returns the users by name, ascending.
func Users(cluster Cluster) ([]catalog.User, error) {
	view := cluster.Catalog()
	if view == nil {
		return nil, ErrNoCatalog
	}
	return view.UsersByName(), nil
}

// User returns the user with the given name.
func User(cluster Cluster, name string) (catalog.User, error) {
	view := cluster.Catalog()
	if view == nil {
		return catalog.User{}, ErrNoCatalog
	}
	u, there := view.User(name)
	if !there {
		return catalog.User{}, fmt.Errorf("%w: %q", ErrNoUser, name)
	}
	return u, nil
}

// PutUser creates a user, or replaces the grants and limits of an existing one. If expected is not
// nil, PutUser changes the user only if the user's present rights equal *expected. unconfirmed
// names the nodes that did not confirm the change.
func PutUser(ctx context.Context, cluster Cluster, name string, rights catalog.UserRights, expected *catalog.UserRights) (u catalog.User, unconfirmed []string, err error) {
	if err := checkUser(name, rights, expected); err != nil {
		return u, nil, err
	}
	r, unconfirmed, err := change(ctx, cluster, &catalog.Command{PutUser: &catalog.PutUserEntry{Name: name, Grants: rights.Grants, Limits: rights.Limits, Was: expected}})
	switch {
	case r.Missing:
		err = fmt.Errorf("%w: %q", ErrNoUser, name)
	case r.Exists:
		err = ErrUserChanged
	}
	return r.User, unconfirmed, err
}

// DeleteUser deletes a user with all its tokens, and returns it.
func DeleteUser(ctx context.Context, cluster Cluster, name string) (u catalog.User, behind []string, err error) {
	r, behind, err := change(ctx, cluster, &catalog.Command{DeleteUser: &catalog.DeleteUserEntry{Name: name}})
	if r.Missing {
		err = fmt.Errorf("%w: %q", ErrNoUser, name)
	}
	return r.User, behind, err
}

// AddToken adds a token to a user. It returns the token and its text. The cluster does not store
// the text. If expiresIn is 0, the token does not expire.
func AddToken(ctx context.Context, cluster Cluster, name string, expiresIn time.Duration) (t catalog.Token, text string, behind []string, err error) {
	if expiresIn < 0 || expiresIn > ExpiresInMax {
		return t, "", nil, &FieldError{"expires_in", ExpiresInRule}
	}
	for {
		view := cluster.Catalog()
		if view == nil {
			return t, "", nil, ErrNoCatalog
		}
		now := time.Now()
		t = catalog.Token{Number: view.Users.LastToken + 1, Created: now.Unix()}
		if expiresIn > 0 {
			t.Expires = now.Add(expiresIn + time.Second - 1).Unix() // round up, so that the token does not expire early
		}
		text, t.Hash = newToken(t.Number)
		r, behind, err := change(ctx, cluster, &catalog.Command{AddToken: &catalog.AddTokenEntry{User: name, Token: t}})
		switch {
		case err != nil:
			return t, "", nil, err
		case r.Missing:
			return t, "", nil, fmt.Errorf("%w: %q", ErrNoUser, name)
		case !r.Exists:
			return t, text, behind, nil
		}
		// Another new token has this number. When the call of change returns, this node has applied
		// the catalog's log up to that token, so the next number is higher.
		if err := ctx.Err(); err != nil {
			return t, "", nil, err
		}
	}
}

// RemoveToken deletes a token of a user.
func RemoveToken(ctx context.Context, cluster Cluster, name, id string) (behind []string, err error) {
	u, err := User(cluster, name)
	if errors.Is(err, ErrNoUser) || err == nil && !slices.ContainsFunc(u.Tokens, func(t catalog.Token) bool { return t.ID() == id }) {
		// Another node may have just added the token.
		if err = cluster.CatchUp(ctx); err == nil {
			u, err = User(cluster, name)
		}
	}
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(u.Tokens, func(t catalog.Token) bool { return t.ID() == id })
	if at < 0 {
		return nil, fmt.Errorf("%w: %q", ErrNoToken, id)
	}
	r, behind, err := change(ctx, cluster, &catalog.Command{RemoveToken: &catalog.RemoveTokenEntry{User: name, Number: u.Tokens[at].Number}})
	if r.Missing {
		err = fmt.Errorf("%w: %q", ErrNoToken, id)
	}
	return behind, err
}

// change changes the catalog. If another command came first, the result has Exists or Missing
// set, and there is no error.
func change(ctx context.Context, cluster Cluster, command *catalog.Command) (catalog.Result, []string, error) {
	view := cluster.Catalog()
	if view == nil {
		return catalog.Result{}, nil, ErrNoCatalog
	}
	r, behind, err := cluster.ChangeOnAll(ctx, command)
	switch {
	case err != nil:
		return catalog.Result{}, nil, err
	case r.Refused != "":
		return catalog.Result{}, nil, &catalog.RefusedError{Reason: r.Refused}
	}
	return *r, behind, nil
}

// NameRule is the rule for names of users.
const NameRule = "not 1 to 64 of A-Z a-z 0-9 . _ -"

// checkUser returns the first fault of the name, the rights or the expected rights.
func checkUser(name string, rights catalog.UserRights, expected *catalog.UserRights) error {
	switch {
	case !catalog.ValidUserName(name):
		return &FieldError{"name", NameRule}
	case name == RootName || name == DefaultName:
		return &FieldError{"name", fmt.Sprintf("%q stands for the holder of the root token, %q for any user of Redis clients", RootName, DefaultName)}
	case len(rights.Grants) < 1 || len(rights.Grants) > catalog.GrantsMax:
		return &FieldError{"grants", fmt.Sprintf("%d are not 1 to %d", len(rights.Grants), catalog.GrantsMax)}
	}
	if err := checkRights("", rights); err != nil {
		return err
	}
	if expected == nil {
		return nil
	}
	return checkRights("was.", *expected)
}

// checkRights returns the first fault of a grant or limit. path is the prefix of the field's name.
func checkRights(path string, rights catalog.UserRights) error {
	for i := range rights.Grants {
		if err := checkGrant(fmt.Sprintf("%sgrants[%d]", path, i), &rights.Grants[i]); err != nil {
			return err
		}
	}
	limits := rights.Limits
	for _, l := range []struct {
		field string
		value int64
	}{
		{"requests_per_second", limits.Requests}, {"ops_per_second", limits.Ops}, {"connections_per_second", limits.Connections},
	} {
		if l.value < 0 || l.value > LimitMax {
			return &FieldError{path + "limits." + l.field, fmt.Sprintf("not 0 to %d; 0 is for no limit", LimitMax)}
		}
	}
	return nil
}

// DefaultName is the user of Redis clients that name no user.
const DefaultName = "default"

// checkGrant refuses a meaningless grant. A grant of a cluster role applies to all keyspaces, even
// if the grant names none.
func checkGrant(field string, g *catalog.Grant) error {
	if _, known := roles[g.Role]; !known {
		return &FieldError{field + ".role", "not one of " + strings.Join(Roles(), ", ")}
	}
	if ofCluster(g.Role) {
		if g.Keyspaces == nil {
			g.Keyspaces = []string{catalog.AllKeyspaces}
		}
		if !slices.Equal(g.Keyspaces, []string{catalog.AllKeyspaces}) {
			return &FieldError{field + ".keyspaces", fmt.Sprintf(`role %s is for the whole cluster: only ["*"], or nothing, fits`, g.Role)}
		}
		return nil
	}
	if len(g.Keyspaces) < 1 || len(g.Keyspaces) > catalog.GrantKeyspacesMax {
		return &FieldError{field + ".keyspaces", fmt.Sprintf(`%d names are not 1 to %d; ["*"] is for all`, len(g.Keyspaces), catalog.GrantKeyspacesMax)}
	}
	for i, name := range g.Keyspaces {
		at := fmt.Sprintf("%s.keyspaces[%d]", field, i)
		switch {
		case name != catalog.AllKeyspaces && !catalog.ValidName(name):
			return &FieldError{at, "neither * nor 1 to 63 of a-z, 0-9 and _, from a letter on"}
		case slices.Contains(g.Keyspaces[:i], name):
			return &FieldError{at, "given twice"}
		}
	}
	return nil
}
