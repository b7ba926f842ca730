package unread

import (
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// Fire shows a dot to all users and returns how often it was fired.
func (n *Numbers) Fire(dot string, w *shard.Write) (fired int64, err error) {
	return n.writeBoard(w, &board.Op{Kind: board.Fire, Name: dot})
}

// SetDot sets whether users without cursors see a dot. It creates a missing dot.
func (n *Numbers) SetDot(dot string, newUsers bool, w *shard.Write) (fired int64, err error) {
	return n.writeBoard(w, &board.Op{Kind: board.SetDot, Name: dot, NewUsers: newUsers})
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
// the dot afterwards, which only a repeat of the request can do. It creates a missing dot, so that
// the user does not see the dot before it is fired.
func (n *Numbers) ClearDot(dot string, user uint64, w *shard.Write) (shows bool, err error) {
	view, made, err := n.boardWith(board.MakeDot, dot, w)
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
