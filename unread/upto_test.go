package unread

import (
	"errors"
	"math"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard"
)

// changePost publishes or removes a post.
func changePost(t rapid.TB, node *shard.Node, kind outbox.Kind, author, id uint64) {
	t.Helper()
	w := &shard.Write{Ops: []engine.Op{{ID: author}}, Outbox: []shard.OutboxOp{{Kind: kind, ID: id}}, Deadline: soon()}
	if err := node.Write(node.Keyspace(PostsKeyspace), w); err != nil {
		t.Fatal(err)
	}
}

// A reset up to the newest post of a page leaves exactly the posts above it, whatever was
// published, removed and counted before, between the read and the reset, and since.
func TestResetUpToLeavesWhatIsNewer(t *testing.T) {
	t.Parallel()
	node := openNode(t)
	n := New(node)
	user := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		user += 10
		authors := []uint64{user + 1, user + 2, user + 3}
		posts := map[uint64]map[uint64]bool{}
		unread := map[uint64]int64{}
		for _, author := range authors {
			posts[author] = map[uint64]bool{}
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
				changePost(t, node, outbox.Publish, a, id)
				if !posts[a][id] {
					posts[a][id] = true
					unread[a]++
				}
			},
			"remove": func(t *rapid.T) {
				a, id := author.Draw(t, "author"), id.Draw(t, "id")
				changePost(t, node, outbox.Remove, a, id)
				if posts[a][id] {
					delete(posts[a], id)
					unread[a]--
				}
			},
			"count": func(t *rapid.T) { // a post without an id
				a := author.Draw(t, "author")
				w := &shard.Write{Ops: []engine.Op{{ID: a, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}, Deadline: soon()}
				if err := node.Write(node.Keyspace(PostsKeyspace), w); err != nil {
					t.Fatal(err)
				}
				unread[a]++
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

// Posts that come while the user resets are unread, each once.
func TestResetUpToBesidePublishes(t *testing.T) {
	t.Parallel()
	node := openNode(t)
	n := New(node)
	const before, during = 50, 100
	for id := range uint64(before) {
		changePost(t, node, outbox.Publish, 2+id%2, id+1)
	}
	upTo := uint64(before)
	if _, err := n.ResetFeed(1, []uint64{2, 3}, &upTo, &shard.Write{Deadline: soon()}); err != nil {
		t.Fatal(err)
	}
	var publishing sync.WaitGroup
	for author := uint64(2); author <= 3; author++ {
		publishing.Go(func() {
			for id := range uint64(during) {
				w := &shard.Write{Ops: []engine.Op{{ID: author}}, Outbox: []shard.OutboxOp{{Kind: outbox.Publish, ID: before + 1 + id}}, Deadline: soon()}
				if err := node.Write(node.Keyspace(PostsKeyspace), w); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 10 {
		if _, err := n.ResetFeed(1, nil, &upTo, &shard.Write{Deadline: soon()}); err != nil && !errors.Is(err, shard.ErrOverloaded) {
			t.Error(err)
		}
	}
	publishing.Wait()
	if f, err := n.Feed(1, asOfNow()); err != nil || f.Unread != 2*during {
		t.Errorf("%d unread, %v, want %d", f.Unread, err, 2*during)
	}
}
