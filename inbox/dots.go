package inbox

import (
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// Dot is the state of a dot that all users share.
type Dot struct {
	Name     string
	Fired    int64
	NewUsers bool // users who have never cleared the dot see it
}

// Dots returns all dots, sorted by name.
func (n *Numbers) Dots(opt *shard.ReadOptions) ([]Dot, error) {
	view, err := n.board(opt)
	if err != nil {
		return nil, err
	}
	dots := make([]Dot, 0, len(view.Dots))
	for _, name := range slices.Sorted(maps.Keys(view.Dots)) {
		dots = append(dots, Dot{name, view.Dots[name].Fired, view.Dots[name].NewUsers})
	}
	return dots, nil
}

// Fire shows a dot to all users. It returns how often the dot has been fired.
func (n *Numbers) Fire(dot string, w *shard.Write) (fired int64, err error) {
	return n.writeBoard(w, &unread.BoardOp{Kind: unread.Fire, Name: dot})
}

// SetDot sets whether users who have never cleared a dot see it. It creates a missing dot.
func (n *Numbers) SetDot(dot string, newUsers bool, w *shard.Write) (fired int64, err error) {
	return n.writeBoard(w, &unread.BoardOp{Kind: unread.SetDot, Name: dot, NewUsers: newUsers})
}

// Shows reports whether a user sees a dot.
func (n *Numbers) Shows(dot string, user uint64, opt *shard.ReadOptions) (bool, error) {
	view, err := n.board(opt)
	if err != nil {
		return false, err
	}
	d, there := view.Dots[dot]
	if !there {
		return false, nil
	}
	row, err := n.cursors(user, int(d.Number)+1, opt)
	if err != nil {
		return false, err
	}
	return d.Shows(row), nil
}

// ClearDot hides a dot from a user until the dot is fired again. It returns whether the user sees
// the dot after the call; only a repeated request can return true. If the dot does not exist,
// ClearDot creates it, so that the user does not see the dot before it is fired.
func (n *Numbers) ClearDot(dot string, user uint64, w *shard.Write) (shows bool, err error) {
	view, made, err := n.boardWith(unread.MakeDot, dot, w)
	if err != nil {
		return false, err
	}
	d, there := view.Dots[dot]
	if !there {
		return false, n.touch(w, user)
	}
	row, err := n.move(w, user, unread.Raise, d.Number, d.Fired, made)
	if err != nil {
		return false, err
	}
	return d.Shows(row), nil
}
