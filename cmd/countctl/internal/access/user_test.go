package access

import (
	"testing"

	"github.com/countd/countd/client"
)

// A grant that names no keyspaces is had by a user with the role in the whole cluster, not by
// one with the role in some keyspaces: the server refuses it then.
func TestHolds(t *testing.T) {
	u := &client.User{Grants: []client.Grant{{Role: "writer", Keyspaces: []string{"posts"}}, {Role: "metrics", Keyspaces: []string{"*"}}}}
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
