package cluster

import (
	"testing"

	"github.com/countd/countd/client/admin"
)

// If a user has a role in the whole cluster, holds returns true for a grant of that role without
// keyspaces. If the user has the role only in some keyspaces, it returns false.
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
