package catalog

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/rafttest"
)

var aHash = strings.Repeat("0f", tokenHashBytes)

func putUser(name string, grants ...Grant) *Command {
	return &Command{PutUser: &PutUserEntry{Name: name, Grants: grants}}
}

// changeUser is like putUser, but requires that the user has the grants was. If was is empty, the
// user must not exist.
func changeUser(name string, was []Grant, limits UserLimits, grants ...Grant) *Command {
	return &Command{PutUser: &PutUserEntry{Name: name, Grants: grants, Was: &UserRights{Grants: was, Limits: limits}}}
}

func deleteUser(name string) *Command { return &Command{DeleteUser: &DeleteUserEntry{Name: name}} }

func addToken(user string, number uint64, created, expires int64) *Command {
	return &Command{AddToken: &AddTokenEntry{User: user, Token: Token{Number: number, Hash: aHash, Created: created, Expires: expires}}}
}

func removeToken(user string, number uint64) *Command {
	return &Command{RemoveToken: &RemoveTokenEntry{User: user, Number: number}}
}

func grant(role string, keyspaces ...string) Grant { return Grant{Role: role, Keyspaces: keyspaces} }

// userSteps returns a command of each kind for users.
func userSteps() (steps []struct {
	name    string
	command *Command
}) {
	for _, command := range []*Command{
		putUser("web", grant("writer", "posts", "unread")), addToken("web", 1, 5, 0), putUser("web", grant("admin", AllKeyspaces)),
		addToken("web", 2, 6, 9), removeToken("web", 1), deleteUser("web"),
	} {
		steps = append(steps, struct {
			name    string
			command *Command
		}{"user", command})
	}
	return steps
}

// usersCatalog returns a catalog of one node.
func usersCatalog(t rapid.TB) *Catalog {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	return c
}

func TestUsers(t *testing.T) {
	tokens := func(want ...uint64) func(*View, *Result) string {
		return func(v *View, r *Result) string {
			u, _ := v.User("web")
			var got []uint64
			for _, token := range u.Tokens {
				got = append(got, token.Number)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || r.User.Name != "web" {
				return fmt.Sprintf("tokens %v, want %v", got, want)
			}
			return ""
		}
	}
	refusal := func(_ *View, r *Result) string {
		if r.Refused == "" {
			return "was not refused"
		}
		return ""
	}
	missing := func(_ *View, r *Result) string {
		if !r.Missing {
			return "is not missing"
		}
		return ""
	}
	taken := func(_ *View, r *Result) string {
		if !r.Exists {
			return "the number is not taken"
		}
		return ""
	}
	changed := func(_ *View, r *Result) string {
		if !r.Exists {
			return "the user is as expected"
		}
		return ""
	}
	c := usersCatalog(t)
	for i, step := range []struct {
		command *Command
		check   func(*View, *Result) string
	}{
		{putUser("", grant("reader", "posts")), refusal},
		{putUser("a b", grant("reader", "posts")), refusal},
		{putUser(strings.Repeat("x", UserNameBytesMax+1), grant("reader", "posts")), refusal},
		{putUser("web"), refusal},
		{putUser("web", grant("reader")), refusal},
		{putUser("web", grant("", "posts")), refusal},
		{putUser("web", grant("reader", "Posts")), refusal},
		{&Command{PutUser: &PutUserEntry{Name: "web", Grants: []Grant{grant("reader", "posts")}, Limits: UserLimits{Ops: -1}}}, refusal},
		{addToken("web", 1, 0, 0), missing},
		{deleteUser("web"), missing},
		{putUser("web", grant("reader", "posts")), tokens()},
		{removeToken("web", 1), missing},
		{addToken("web", 0, 1, 0), taken},
		{addToken("web", 2, 1, 0), taken},
		{&Command{AddToken: &AddTokenEntry{User: "web", Token: Token{Number: 1, Hash: "0f"}}}, refusal},
		{addToken("web", 1, 1, 0), tokens(1)},
		{addToken("web", 1, 1, 0), taken},
		{addToken("web", 2, 1, 10), tokens(1, 2)},
		{putUser("web", grant("writer", AllKeyspaces)), tokens(1, 2)},
		{addToken("web", 3, 9, 0), tokens(1, 2, 3)},
		{addToken("web", 4, 10, 0), tokens(1, 3, 4)}, // token 2 has expired
		{removeToken("web", 3), tokens(1, 4)},
		{removeToken("web", 3), missing},
		{deleteUser("web"), nil},
		{putUser("web", grant("reader", "posts")), tokens()},
		{addToken("web", 1, 1, 0), taken},
		{addToken("web", 5, 1, 0), tokens(5)},
		{changeUser("web", nil, UserLimits{}, grant("writer", "posts")), changed},
		{changeUser("web", []Grant{grant("reader", "users")}, UserLimits{}, grant("writer", "posts")), changed},
		{changeUser("web", []Grant{grant("reader", "posts")}, UserLimits{Ops: 1}, grant("writer", "posts")), changed},
		{changeUser("web", []Grant{grant("reader", "posts")}, UserLimits{}, grant("writer", "posts")), tokens(5)},
		{changeUser("bob", []Grant{grant("reader", "posts")}, UserLimits{}, grant("writer", "posts")), missing},
		{deleteUser("web"), nil},
		{changeUser("web", nil, UserLimits{}, grant("reader", "posts")), tokens()},
	} {
		before := c.View()
		r := applyCommand(t, c, step.command)
		if step.check != nil {
			if wrong := step.check(c.View(), r); wrong != "" {
				t.Errorf("step %d: %s: %+v", i, wrong, r)
			}
		}
		if changed := r.User.Name != "" && r.Refused == ""; changed != (before.Users != c.View().Users) {
			t.Errorf("step %d: users replaced: %v, result %+v", i, !changed, r)
		}
		again := New()
		if err := rafttest.Restore(again, rafttest.Persisted(t, c)); err != nil || !sameView(again.View(), c.View()) {
			t.Fatalf("step %d: %s became %s, %v", i, c.View().encoded(), again.View().encoded(), err)
		}
	}
}

func TestUsersAreBounded(t *testing.T) {
	c := usersCatalog(t)
	for i := range UsersMax {
		applyCommand(t, c, putUser(fmt.Sprintf("u%d", i), grant("reader", AllKeyspaces)))
	}
	if r := applyCommand(t, c, putUser("more", grant("reader", AllKeyspaces))); r.Bound != BoundUsers {
		t.Errorf("one user too many: %+v", r)
	}
	if r := applyCommand(t, c, putUser("u0", grant("writer", AllKeyspaces))); r.Refused != "" {
		t.Errorf("a change of a user: %+v", r)
	}
	for i := range uint64(UserTokensMax) {
		applyCommand(t, c, addToken("u0", i+1, 1, 0))
	}
	if r := applyCommand(t, c, addToken("u0", UserTokensMax+1, 1, 0)); r.Bound != BoundTokens {
		t.Errorf("one token too many: %+v", r)
	}
	if r := applyCommand(t, c, addToken("u1", UserTokensMax+1, 1, 0)); r.User.Name != "u1" {
		t.Errorf("a token of another user: %+v", r)
	}
}

// TestUsersModel applies random commands and checks that revocation is final:
//
//  1. No user ever gets a token number that any user had before.
//  2. A deleted token, or a token of a deleted user, never comes back.
//  3. A snapshot restores the same users.
func TestUsersModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := usersCatalog(t)
		live, given := map[uint64]string{}, uint64(0)
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			user, number := name.Draw(t, "user"), rapid.Uint64Range(0, given+2).Draw(t, "number")
			_, exists := c.View().User(user)
			switch rapid.IntRange(0, 3).Draw(t, "command") {
			case 0:
				applyCommand(t, c, putUser(user, grant("reader", "posts")))
			case 1:
				applyCommand(t, c, deleteUser(user))
				for n, of := range live {
					if of == user {
						delete(live, n)
					}
				}
			case 2:
				r := applyCommand(t, c, addToken(user, number, 1, 0))
				if added := r.User.Name != ""; added != (exists && number == given+1 && len(r.User.Tokens) <= UserTokensMax) && r.Bound == "" {
					t.Fatalf("token %d of %s after %d: %+v", number, user, given, r)
				} else if added {
					live[number], given = user, number
				}
			case 3:
				applyCommand(t, c, removeToken(user, number))
				if live[number] == user {
					delete(live, number)
				}
			}
			got := map[uint64]string{}
			for _, u := range c.View().UsersByName() {
				for _, token := range u.Tokens {
					got[token.Number] = u.Name
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(live) || c.View().Users.LastToken != given {
				t.Fatalf("tokens %v, want %v; last %d, want %d", got, live, c.View().Users.LastToken, given)
			}
			again := New()
			if err := rafttest.Restore(again, rafttest.Persisted(t, c)); err != nil || !sameView(again.View(), c.View()) {
				t.Fatalf("%s became %s, %v", c.View().encoded(), again.View().encoded(), err)
			}
		}
	})
}
