package inbox

import (
	"fmt"
	"slices"

	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// GroupRule is the error for a name that feed.ValidGroupName refuses.
var GroupRule = fmt.Sprintf("not 1 to %d of A-Z a-z 0-9 . _ -", feed.GroupNameBytesMax)

// Groups returns the groups of a user, ascending by name.
func (t *Timelines) Groups(user uint64, opt *shard.ReadOptions) ([]feed.Group, error) {
	var q feed.GroupsQuery
	err := t.readFeed(&q, user, opt)
	return q.Groups, err
}

// Group returns one group of a user, or ErrNoGroup.
func (t *Timelines) Group(user uint64, name string, opt *shard.ReadOptions) (feed.Group, error) {
	groups, err := t.Groups(user, opt)
	if err != nil {
		return feed.Group{}, err
	}
	i := slices.IndexFunc(groups, func(g feed.Group) bool { return g.Name == name })
	if i < 0 {
		return feed.Group{}, ErrNoGroup
	}
	return groups[i], nil
}

// PutGroup creates or replaces a group of followees. The user must follow all of them. It returns
// the number of followees in the group.
func (t *Timelines) PutGroup(user uint64, name string, followees []uint64, w *shard.Write) (int64, error) {
	ids := slices.Clone(followees)
	slices.Sort(ids)
	op := feed.Op{Kind: feed.PutGroup, User: user, Group: name}
	for _, id := range slices.Compact(ids) {
		op.Followees = append(op.Followees, feed.Followee{ID: id})
	}
	size, err := t.changeGroup(op, w)
	if err != nil || len(w.Overflows) == 0 {
		return size, err
	}
	if w.Overflows[0].Column == feed.RefusedGroups {
		return 0, &errs.ArgumentError{Field: "name", Problem: fmt.Sprintf("the user has %d groups, the most there may be", feed.GroupsMax)}
	}
	return 0, t.notFollowed(user, followees, w)
}

// DropGroup removes a group, if it exists.
func (t *Timelines) DropGroup(user uint64, name string, w *shard.Write) error {
	_, err := t.changeGroup(feed.Op{Kind: feed.DropGroup, User: user, Group: name}, w)
	return err
}

// changeGroup writes an op on a group. It returns the group's number of followees afterwards.
func (t *Timelines) changeGroup(op feed.Op, w *shard.Write) (size int64, err error) {
	ks, err := t.keyspace(kinds.KeyspaceFeed, kinds.Feed)
	if err != nil {
		return 0, err
	}
	w.Ops, w.Width, w.Rows = feed.Ops{op}, 1, make([]int64, 1)
	if err := t.node.Write(ks, w); err != nil {
		return 0, err
	}
	if !w.Repeated || len(w.Overflows) > 0 {
		return w.Rows[0], nil
	}
	// For a repeated request, the result of the write is the number of all the user's followees. So
	// read the group's number of followees.
	groups, err := t.Groups(op.User, &shard.ReadOptions{Consistency: shard.Stale, Token: w.Token, Deadline: w.Deadline})
	if err != nil {
		return 0, fmt.Errorf("%w: it was applied, and the group could not be read: %w", errs.ErrOutcomeUnknown, err)
	}
	for _, g := range groups {
		if g.Name == op.Group {
			size = int64(len(g.Followees))
		}
	}
	return size, nil
}

// notFollowed returns the error for a group with an author whom the user does not follow. It names
// the first such author. If the user has followed the author meanwhile, the error names no author.
func (t *Timelines) notFollowed(user uint64, followees []uint64, w *shard.Write) error {
	argument := &errs.ArgumentError{Field: "followees", Problem: "the user does not follow all of them"}
	var q feed.Query
	opt := &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: w.Deadline}
	if err := t.readFeed(&q, user, opt); err != nil {
		return argument
	}
	followed, _ := q.Of(0)
	for i, id := range followees {
		if !slices.ContainsFunc(followed, func(f feed.Followee) bool { return f.ID == id }) {
			argument.Field, argument.Problem = fmt.Sprintf("followees[%d]", i), "the user does not follow this author"
			break
		}
	}
	return argument
}
