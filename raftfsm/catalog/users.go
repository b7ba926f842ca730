package catalog

import (
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/countd/countd/internal/wire"
)

// The bounds of users. They are low because each command about users copies the map of users, and
// every node has all tokens in memory.
const (
	// UsersMax bounds the users of a cluster: one for each service and operator.
	UsersMax = 1024
	// UserTokensMax bounds the tokens of a user. It allows several machines, each with an old and a
	// new token while an operator rotates tokens.
	UserTokensMax = 32
	// GrantsMax bounds the grants of a user.
	GrantsMax = 64
	// GrantKeyspacesMax bounds the keyspaces of a grant.
	GrantKeyspacesMax = KeyspacesMax
	// UserNameBytesMax bounds the name of a user.
	UserNameBytesMax = 64
)

// AllKeyspaces, among the keyspaces of a grant, stands for all present and later keyspaces.
const AllKeyspaces = "*"

// Users are the users of a cluster. A value of type Users never changes: each command that changes
// a user makes a new value. So two views with the same pointer have the same users.
type Users struct {
	// LastToken is the highest number that a token has had. No number is used twice.
	LastToken uint64          `json:"last_token"`
	ByName    map[string]User `json:"by_name"`
}

// User is a user of the cluster. Package auth interprets the roles of its grants.
type User struct {
	Name   string     `json:"name"`
	Grants []Grant    `json:"grants"`
	Limits UserLimits `json:"limits,omitzero"`
	Tokens []Token    `json:"tokens,omitempty"` // in the order of their numbers
}

// Grant gives a role on keyspaces.
type Grant struct {
	Role      string   `json:"role"`
	Keyspaces []string `json:"keyspaces"`
}

// UserLimits bound the requests, ops and new connections of a user per second and node. 0 is no limit.
type UserLimits struct {
	Requests    int64 `json:"requests,omitempty"`
	Ops         int64 `json:"ops,omitempty"`
	Connections int64 `json:"connections,omitempty"`
}

// Token is a secret that identifies a user. The catalog holds its hash only.
type Token struct {
	Number  uint64 `json:"number"`
	Hash    string `json:"hash"`              // SHA-256 of the token's text, in hexadecimal
	Created int64  `json:"created"`           // Unix time
	Expires int64  `json:"expires,omitempty"` // Unix time; 0 for never
}

// tokenHashBytes is the length of a SHA-256 hash.
const tokenHashBytes = 32

// ID returns the name of a token. No other token of the cluster ever has it.
func (t *Token) ID() string { return TokenID(t.Number) }

// TokenID returns the name of the token with this number.
func TokenID(number uint64) string { return "k" + strconv.FormatUint(number, 10) }

// ValidUserName reports whether a name is valid for a user: 1 to UserNameBytesMax of A-Z,
// a-z, 0-9, ".", "_" and "-".
func ValidUserName(name string) bool { return wire.IsLabel(name, UserNameBytesMax) }

// PutUserEntry creates a user, or replaces the grants and limits of an existing one. Tokens stay.
// Was holds the rights that the sender has read. If the user has neither these rights nor the
// entry's new rights, the catalog refuses the entry with Exists or Missing set. So the entry never
// undoes another change. A repeated entry changes nothing.
type PutUserEntry struct {
	Name   string      `json:"name"`
	Grants []Grant     `json:"grants"`
	Limits UserLimits  `json:"limits,omitzero"`
	Was    *UserRights `json:"was,omitempty"`
}

// UserRights are the grants and limits of a user. A user has at least one grant. UserRights without
// grants mean that the user does not exist.
type UserRights struct {
	Grants []Grant    `json:"grants"`
	Limits UserLimits `json:"limits,omitzero"`
}

// match reports whether a user has exactly these rights. A user that does not exist is the zero
// User.
func (r *UserRights) match(u *User) bool {
	return r.Limits == u.Limits && slices.EqualFunc(r.Grants, u.Grants, func(a, b Grant) bool {
		return a.Role == b.Role && slices.Equal(a.Keyspaces, b.Keyspaces)
	})
}

// DeleteUserEntry deletes a user with all its tokens.
type DeleteUserEntry struct {
	Name string `json:"name"`
}

// AddTokenEntry adds a token to a user, and deletes the user's tokens that expired before Created.
// The sender chooses the number, because it needs the number to hash the token's text. If the
// number does not follow LastToken, the catalog refuses the entry with Exists set.
type AddTokenEntry struct {
	User  string `json:"user"`
	Token Token  `json:"token"`
}

// RemoveTokenEntry deletes a token of a user.
type RemoveTokenEntry struct {
	User   string `json:"user"`
	Number uint64 `json:"number"`
}

// User returns the user of a name.
func (v *View) User(name string) (User, bool) {
	u, there := v.Users.ByName[name]
	return u, there
}

// UsersByName returns the users by name, ascending.
func (v *View) UsersByName() []User { return byName(v.Users.ByName) }

// ownUsers replaces the users of v by a copy, and returns the copy. The caller may change it.
func (v *View) ownUsers() *Users {
	v.Users = &Users{v.Users.LastToken, maps.Clone(v.Users.ByName)}
	return v.Users
}

func (c *PutUserEntry) apply(v *View) (Result, bool) {
	was, exists := v.User(c.Name)
	u := User{Name: c.Name, Grants: c.Grants, Limits: c.Limits, Tokens: was.Tokens}
	switch err := u.check(); {
	case err != nil:
		return refused("%v", err)
	case exists && reflect.DeepEqual(u, was):
		return Result{User: u}, false
	case c.Was != nil && !c.Was.match(&was):
		return Result{Exists: exists, Missing: !exists}, false
	case !exists && len(v.Users.ByName) >= UsersMax:
		return pastBound(BoundUsers, "there are %d users, the most that a cluster takes", UsersMax)
	}
	v.ownUsers().ByName[u.Name] = u
	return Result{User: u}, true
}

func (c *DeleteUserEntry) apply(v *View) (Result, bool) {
	u, exists := v.User(c.Name)
	if !exists {
		return Result{Missing: true}, false
	}
	delete(v.ownUsers().ByName, c.Name)
	return Result{User: u}, true
}

func (c *AddTokenEntry) apply(v *View) (Result, bool) {
	u, exists := v.User(c.User)
	switch {
	case !exists:
		return Result{Missing: true}, false
	case c.Token.Number != v.Users.LastToken+1:
		return Result{Exists: true}, false
	}
	u.Tokens = slices.DeleteFunc(slices.Clone(u.Tokens), func(t Token) bool { return t.Expires != 0 && t.Expires <= c.Token.Created })
	u.Tokens = append(u.Tokens, c.Token)
	if len(u.Tokens) > UserTokensMax {
		return pastBound(BoundTokens, "user %s has %d tokens, the most that a user takes", u.Name, UserTokensMax)
	}
	if err := u.check(); err != nil {
		return refused("%v", err)
	}
	users := v.ownUsers()
	users.ByName[u.Name], users.LastToken = u, c.Token.Number
	return Result{User: u}, true
}

func (c *RemoveTokenEntry) apply(v *View) (Result, bool) {
	u, exists := v.User(c.User)
	at := slices.IndexFunc(u.Tokens, func(t Token) bool { return t.Number == c.Number })
	if !exists || at < 0 {
		return Result{Missing: true}, false
	}
	u.Tokens = slices.Delete(slices.Clone(u.Tokens), at, at+1)
	v.ownUsers().ByName[u.Name] = u
	return Result{User: u}, true
}

// check returns an error for a user beyond the bounds.
func (u *User) check() error {
	if !ValidUserName(u.Name) {
		return fmt.Errorf("a user of name %q: it must be 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-'", u.Name, UserNameBytesMax)
	}
	if len(u.Grants) < 1 || len(u.Grants) > GrantsMax {
		return fmt.Errorf("user %s has %d grants, not 1…%d", u.Name, len(u.Grants), GrantsMax)
	}
	for _, g := range u.Grants {
		if !ValidName(g.Role) || len(g.Keyspaces) < 1 || len(g.Keyspaces) > GrantKeyspacesMax {
			return fmt.Errorf("user %s has role %q on %d keyspaces, not 1…%d", u.Name, g.Role, len(g.Keyspaces), GrantKeyspacesMax)
		}
		for _, name := range g.Keyspaces {
			if name != AllKeyspaces && !ValidName(name) {
				return fmt.Errorf("user %s has a grant on keyspace %q", u.Name, name)
			}
		}
	}
	if u.Limits.Requests < 0 || u.Limits.Ops < 0 || u.Limits.Connections < 0 {
		return fmt.Errorf("user %s has a limit below 0", u.Name)
	}
	return u.checkTokens()
}

func (u *User) checkTokens() error {
	if len(u.Tokens) > UserTokensMax {
		return fmt.Errorf("user %s has %d tokens", u.Name, len(u.Tokens))
	}
	last := uint64(0)
	for _, t := range u.Tokens {
		hash, err := hex.DecodeString(t.Hash)
		if err != nil || len(hash) != tokenHashBytes || t.Number <= last || t.Created < 0 || t.Expires < 0 {
			return fmt.Errorf("user %s has a token %d that is not whole, after %d", u.Name, t.Number, last)
		}
		last = t.Number
	}
	return nil
}
