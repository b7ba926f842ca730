package inbox

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// changePost publishes or removes a post.
func changePost(t rapid.TB, node *shard.Node, kind counters.PostOpKind, author, id uint64) {
	t.Helper()
	w := &shard.Write{Ops: counters.OutboxOps{{Author: author, PostOp: counters.PostOp{Kind: kind, ID: id, Limits: counters.OutboxLimits{Posts: 10_000}}}}, Deadline: soon()}
	if err := node.Write(node.Keyspace(kinds.KeyspaceUsers), w); err != nil {
		t.Fatal(err)
	}
}

// A reset up to the newest post of a page leaves exactly the posts above that post unread. This
// holds for any publishes, removals, counts, deletions, follows and unfollows before, during and
// after the reset. A later reset takes effect even if it is up to a lower id.
func TestResetUpToLeavesWhatIsNewer(t *testing.T) {
	t.Parallel()
	node := openNode(t)
	n := NewNumbers(node)
	user := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		user += 10
		authors := []uint64{user + 1, user + 2, user + 3}
		posts := map[uint64]map[uint64]bool{}
		unread := map[uint64]int64{} // of followees
		total := map[uint64]int64{}
		for _, author := range authors {
			posts[author] = map[uint64]bool{}
		}
		add := func(author uint64, n int64) {
			total[author] += n
			if _, follows := unread[author]; follows {
				unread[author] += n
			}
		}
		author := rapid.SampledFrom(authors)
		id := rapid.Uint64Range(1, 30)
		reset := func(told []uint64, upTo uint64) {
			f, err := n.ResetFeed(user, told, &upTo, &shard.Write{Deadline: soon()})
			if err != nil {
				t.Fatal(err)
			}
			want := int64(0)
			for _, author := range authors {
				if _, follows := unread[author]; !follows && told == nil {
					continue
				}
				unread[author] = 0
				for id := range posts[author] {
					if id > upTo {
						unread[author]++
						want++
					}
				}
			}
			if f.Unread != want {
				t.Fatalf("a reset up to %d leaves %d unread of %v, want %d", upTo, f.Unread, posts, want)
			}
		}
		reset(authors, 0)
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				a, id := author.Draw(t, "author"), id.Draw(t, "id")
				changePost(t, node, counters.Publish, a, id)
				if !posts[a][id] {
					posts[a][id] = true
					add(a, 1)
				}
			},
			"remove": func(t *rapid.T) {
				a, id := author.Draw(t, "author"), id.Draw(t, "id")
				changePost(t, node, counters.Unpublish, a, id)
				if posts[a][id] {
					delete(posts[a], id)
					add(a, -1)
				}
			},
			"count": func(t *rapid.T) { // adds 1 to the number of posts, but no post to the outbox
				a := author.Draw(t, "author")
				w := &shard.Write{Ops: counters.Ops{{ID: a, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}, Deadline: soon()}
				if err := node.Write(node.Keyspace(kinds.KeyspaceUsers), w); err != nil {
					t.Fatal(err)
				}
				add(a, 1)
			},
			"delete": func(t *rapid.T) { // the author
				a := author.Draw(t, "author")
				w := &shard.Write{Ops: counters.Ops{{ID: a, Kind: engine.OpDelete}}, Deadline: soon()}
				if err := node.Write(node.Keyspace(kinds.KeyspaceUsers), w); err != nil {
					t.Fatal(err)
				}
				clear(posts[a])
				add(a, -total[a])
			},
			"follow": func(t *rapid.T) {
				a := author.Draw(t, "author")
				if _, err := n.Follow(user, []uint64{a}, &shard.Write{Deadline: soon()}); err != nil {
					t.Fatal(err)
				}
				unread[a] += 0
			},
			"unfollow": func(t *rapid.T) {
				a := author.Draw(t, "author")
				if _, err := n.Unfollow(user, []uint64{a}, &shard.Write{Deadline: soon()}); err != nil {
					t.Fatal(err)
				}
				delete(unread, a)
			},
			"reset":       func(t *rapid.T) { reset(nil, rapid.OneOf(id, rapid.Just[uint64](math.MaxUint64)).Draw(t, "up to")) },
			"reset these": func(t *rapid.T) { reset(authors, id.Draw(t, "up to")) },
			"": func(t *rapid.T) {
				f, err := n.Feed(user, asOfNow())
				want := int64(0)
				for _, u := range unread {
					want += max(0, u)
				}
				if err != nil || f.Unread != want {
					t.Fatalf("%d unread, %v, want %d", f.Unread, err, want)
				}
			},
		})
	})
}

// Posts that are published during resets are unread, and each counts once.
func TestResetUpToBesidePublishes(t *testing.T) {
	t.Parallel()
	node := openNode(t)
	n := NewNumbers(node)
	const before, during = 50, 100
	for id := range uint64(before) {
		changePost(t, node, counters.Publish, 2+id%2, id+1)
	}
	upTo := uint64(before)
	if _, err := n.ResetFeed(1, []uint64{2, 3}, &upTo, &shard.Write{Deadline: soon()}); err != nil {
		t.Fatal(err)
	}
	var publishing sync.WaitGroup
	for author := uint64(2); author <= 3; author++ {
		publishing.Go(func() {
			for id := range uint64(during) {
				w := &shard.Write{Ops: counters.OutboxOps{{Author: author, PostOp: counters.PostOp{Kind: counters.Publish, ID: before + 1 + id, Limits: counters.OutboxLimits{Posts: 10_000}}}}, Deadline: soon()}
				if err := node.Write(node.Keyspace(kinds.KeyspaceUsers), w); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 10 {
		if _, err := n.ResetFeed(1, nil, &upTo, &shard.Write{Deadline: soon()}); err != nil && !errors.Is(err, errs.ErrOverloaded) {
			t.Error(err)
		}
	}
	publishing.Wait()
	if f, err := n.Feed(1, asOfNow()); err != nil || f.Unread != 2*during {
		t.Errorf("%d unread, %v, want %d", f.Unread, err, 2*during)
	}
}

// racing is a node whose posts change right before each read of posts.
type racing struct {
	*shard.Node
	change func()
}

func (r *racing) Read(ks *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	if ks.Name == kinds.KeyspaceUsers {
		r.change()
	}
	return r.Node.Read(ks, q, ids, opt)
}

// A reset up to a post stores, for each author, the number of posts up to that post at one moment,
// although authors publish and remove posts between its reads.
func TestResetUpToBesideChanges(t *testing.T) {
	t.Parallel()
	node := openNode(t)
	user := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		user += 10
		authors := []uint64{user + 1, user + 2}
		upTo := uint64(10)
		id := rapid.Uint64Range(8, 13)
		posts := map[uint64]map[uint64]bool{}
		seen := map[uint64][]int64{} // author → number of posts up to upTo after each change
		change := func(author, id uint64) {
			kind := counters.Publish
			if posts[author][id] {
				kind = counters.Unpublish
				delete(posts[author], id)
			} else {
				posts[author][id] = true
			}
			changePost(t, node, kind, author, id)
		}
		look := func(author uint64) {
			older := int64(0)
			for id := range posts[author] {
				if id <= upTo {
					older++
				}
			}
			seen[author] = append(seen[author], older)
		}
		left := map[uint64]int{}
		for _, author := range authors {
			posts[author], left[author] = map[uint64]bool{}, 2
			for _, id := range rapid.SliceOfDistinct(id, rapid.ID[uint64]).Draw(t, "before") {
				change(author, id)
			}
			look(author)
		}
		n := NewNumbers(&racing{node, func() {
			author := rapid.SampledFrom(authors).Draw(t, "author")
			if left[author] > 0 && rapid.Bool().Draw(t, "changes") {
				left[author]--
				change(author, id.Draw(t, "id"))
				look(author)
			}
		}})
		if _, err := n.ResetFeed(user, authors, &upTo, &shard.Write{Deadline: soon()}); err != nil {
			t.Fatal(err)
		}
		f, err := NewNumbers(node).Feed(user, asOfNow())
		if err != nil {
			t.Fatal(err)
		}
		for i, author := range authors {
			of := int64(len(posts[author]))
			if got := f.Detail[i].Unread; !slices.ContainsFunc(seen[author], func(seen int64) bool { return got == max(0, of-seen) }) {
				t.Fatalf("author %d has %d unread of %v, having had %v posts up to %d", author, got, posts[author], seen[author], upTo)
			}
		}
	})
}
