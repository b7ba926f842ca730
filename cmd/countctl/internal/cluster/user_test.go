package cluster

import (
	"testing"

	"github.com/countd/countd/client/admin"
)

// A user with a role in the whole cluster has a grant of that role that names no keyspaces.
// A user with the role in some keyspaces does not have it: the server refuses such a grant.
func TestHolds(t *testing.T) {
	u := &admin.User{Grants: []admin.Grant{{Role: "writer", Keyspaces: []string{"posts"}}, {Role: "metrics", Keyspaces: []string{"*"}}}}
	for grant, want := range map[string]bool{"writer:posts": true, "writer:users": false, "writer": false, "metrics": true, "admin": false} {
		parsed, err := (&grantFlags{grants: []string{grant}}).parse()
		if err != nil {
			t.Fatal(err)
		}
		if got := holds(u, parsed[0]); got != want {
			t.Errorf("%s: %v", grant, got)
		}
	}
}
