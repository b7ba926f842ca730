package inbox

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// turns is a node with counts of posts that the test sets. Each call of a device waits for its
// turn, so that the test chooses the order of the calls.
type turns struct {
	Node
	user     uint64
	posts    map[uint64]int64
	now      int               // the number of changes of posts
	followed map[uint64]uint64 // followee → index of the entry by which the user began to follow
	seen     map[uint64]int    // followee → the value of now when the followee's posts were read for the latest acknowledged call that marked them as seen

	current *device
}

// device is a client. It runs only while the test waits for it.
type device struct {
	turn, waits chan struct{}
	done        bool
	err         error
	named       []uint64 // the authors whose posts its last entry marks as seen
	looked      int      // the value of now when the device last read posts
	read        int      // the value of looked at its last entry
	wrote       uint64   // index of the device's last entry
}

func newTurns(node Node, user uint64) *turns {
	return &turns{Node: node, user: user, posts: map[uint64]int64{}, followed: map[uint64]uint64{}, seen: map[uint64]int{}}
}

// start runs do, and returns once do makes its first call or ends.
func (n *turns) start(do func() error) *device {
	d := &device{turn: make(chan struct{}), waits: make(chan struct{})}
	n.current = d
	go func() {
		d.err = do()
		d.done = true
		d.waits <- struct{}{}
	}()
	<-d.waits
	return d
}

// step lets a device make its pending call and continue up to the next call.
func (n *turns) step(d *device) {
	n.current = d
	d.turn <- struct{}{}
	<-d.waits
	for _, id := range d.named {
		if from, follows := n.followed[id]; d.done && follows && d.wrote >= from {
			n.seen[id] = max(n.seen[id], d.read)
		}
	}
}

// wait blocks the calling device until its turn.
func (n *turns) wait() {
	d := n.current
	d.waits <- struct{}{}
	<-d.turn
}

func (n *turns) Read(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	n.wait()
	q, is := query.(*rows.Query)
	if !is {
		return n.Node.Read(ks, query, ids, opt)
	}
	for i, id := range ids {
		q.Rows[i] = n.posts[id]
	}
	n.current.looked = n.now
	return nil
}

// followees returns the user's followees, without waiting for a turn.
func (n *turns) followees() []feed.Followee {
	var q feed.Query
	opt := &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: soon()}
	if err := n.Node.Read(n.Keyspace(kinds.KeyspaceFeed), &q, []uint64{n.user}, opt); err != nil {
		panic(err)
	}
	followees, _ := q.Of(0)
	return followees
}

func (n *turns) Write(ks *shard.Keyspace, w *shard.Write) error {
	n.wait()
	if err := n.Node.Write(ks, w); err != nil {
		return err
	}
	index := w.Token.At[0].Index
	were := n.followed
	n.followed = map[uint64]uint64{}
	for _, f := range n.followees() {
		if n.followed[f.ID] = index; were[f.ID] > 0 {
			n.followed[f.ID] = were[f.ID]
		}
	}
	for id := range were {
		if n.followed[id] == 0 {
			delete(n.seen, id) // a feed forgets the seen posts of former followees
		}
	}
	d, op := n.current, &w.Ops.(feed.Ops)[0]
	d.named = d.named[:0]
	for i := 0; (op.Kind == feed.Reset || op.Kind == feed.Read) && i < len(op.Followees); i++ {
		d.named = append(d.named, op.Followees[i].ID)
	}
	d.wrote, d.read = index, d.looked
	return nil
}

// TestSeenPostsStaySeen runs devices of one user that follow, read and reset concurrently, with
// their reads and entries in any order. Meanwhile followees publish and delete posts. It checks
//
//  1. always: the number of a followee's seen posts is at least the lowest number of the followee's
//     posts since the last acknowledged call read the posts. So seen posts do not become unread
//     again;
//  2. when no call is under way: the number of seen posts equals the number of the followee's posts
//     at some time since then. So no call hides new posts.
func TestSeenPostsStaySeen(t *testing.T) {
	node, user := openNode(t), uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		const authors = 3
		user++
		n := newTurns(node, user)
		numbers := NewNumbers(n)
		var history [authors + 1][]int64 // history[a][t] is the number of posts of author a at time t
		note := func() {
			for id := range uint64(authors + 1) {
				history[id] = append(history[id], n.posts[id])
			}
		}
		note()
		var devices []*device
		check := func() {
			for _, f := range n.followees() {
				from, known := n.seen[f.ID]
				if !known {
					continue
				}
				was := history[f.ID][from:]
				if f.Posts < slices.Min(was) {
					t.Fatalf("%d posts of %d are seen, there were %v since the last acknowledged read", f.Posts, f.ID, was)
				}
				if len(devices) == 0 && !slices.Contains(was, f.Posts) {
					t.Fatalf("%d posts of %d are seen at rest, there were %v since the last acknowledged read", f.Posts, f.ID, was)
				}
			}
		}
		begin := func() *device {
			w := &shard.Write{Deadline: time.Now().Add(time.Hour)}
			named := rapid.SliceOfNDistinct(rapid.Uint64Range(1, authors), 1, authors, rapid.ID[uint64]).Draw(t, "authors")
			var err error
			switch rapid.IntRange(0, 5).Draw(t, "call") {
			case 0, 1:
				return n.start(func() error { _, err = numbers.ResetFeed(user, nil, nil, w); return err })
			case 2:
				return n.start(func() error { _, err = numbers.ResetFeed(user, named, nil, w); return err })
			case 3:
				return n.start(func() error { _, err = numbers.ReadFeed(user, named, w); return err })
			case 4:
				return n.start(func() error { _, err = numbers.Follow(user, named, w); return err })
			}
			return n.start(func() error { _, err = numbers.Unfollow(user, named, w); return err })
		}
		step := func(at int) {
			d := devices[at]
			if n.step(d); d.err != nil {
				t.Fatal(d.err)
			}
			if d.done {
				devices = slices.Delete(devices, at, at+1)
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what < 3:
				id := rapid.Uint64Range(1, authors).Draw(t, "author")
				n.posts[id] += rapid.SampledFrom([]int64{1, 1, 2, -1, -2}).Draw(t, "posts")
				n.now++
				note()
			case what < 5 && len(devices) < 4:
				devices = append(devices, begin())
			case len(devices) > 0:
				step(rapid.IntRange(0, len(devices)-1).Draw(t, "device"))
			}
			check()
		}
		for len(devices) > 0 {
			step(0)
			check()
		}
	})
}
