package kinds

import (
	"slices"
	"testing"

	"github.com/countd/countd/raftfsm/catalog"
)

// Whichever nodes create the keyspaces, with whichever choices: users are texts in all keyspaces or in none.
func TestUsersAreTheSameEverywhere(t *testing.T) {
	divisor := 4
	choices := [][]catalog.Keyspace{Beginning(nil, divisor, nil), Beginning(nil, divisor, map[string]bool{KeyspaceUsers: true}), Beginning(nil, divisor, map[string]bool{KeyspacePosts: true})}
	for leaders := range 3 * 3 * 3 * 3 * 3 { // which choice each keyspace is created with
		v := &catalog.View{Keyspaces: map[string]catalog.Keyspace{}}
		made := 0
		for n := leaders; ; n /= 3 {
			k := Missing(v, choices[n%3])
			if k == nil {
				break
			}
			made++
			v.Keyspaces[k.Name] = *k
		}
		users := v.Keyspaces[KeyspaceUsers].Names
		for _, name := range []string{KeyspaceUnread, KeyspaceFeed} {
			if v.Keyspaces[name].Names != users {
				t.Errorf("created by %d: %s has the names %q, and users %q", leaders, name, v.Keyspaces[name].Names, users)
			}
		}
		if made != len(Builtin) || v.Keyspaces[KeyspaceBoard].Names != "" {
			t.Errorf("created by %d: %+v", leaders, v.Keyspaces)
		}
		for i, want := range [][]string{nil, {KeyspaceUsers}, {KeyspacePosts}} {
			if want != nil && v.Keyspaces[want[0]].Names != "" {
				want = nil
			}
			if got := NotTexts(v, choices[i]); !slices.Equal(got, want) {
				t.Errorf("created by %d, choice %d is without effect on %q, want %q", leaders, i, got, want)
			}
		}
	}
}
