package unread

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// Fire shows a dot to everybody, and returns how often it was fired by then.
func (n *Numbers) Fire(dot string, w *shard.Write) (fired int64, err error) {
	return n.writeBoard(w, &raftfsm.BoardOp{Kind: raftfsm.BoardFire, Name: dot})
}

// SetDot says whether users who were never seen are shown a dot, and makes it if it
// is not there.
func (n *Numbers) SetDot(dot string, newUsers bool, w *shard.Write) (fired int64, err error) {
	return n.writeBoard(w, &raftfsm.BoardOp{Kind: raftfsm.BoardDot, Name: dot, NewUsers: newUsers})
}

// Shows reports whether a user sees a dot.
func (n *Numbers) Shows(dot string, user uint64, opt *shard.ReadOptions) (bool, error) {
	board, err := n.board(opt)
	if err != nil {
		return false, err
	}
	d, there := board.Dots[dot]
	if !there {
		return false, nil
	}
	row, err := n.cursors(user, int(d.Number)+1, opt)
	if err != nil {
		return false, err
	}
	return d.Shows(row), nil
}

// ClearDot hides a dot from a user until it is fired again. It returns whether the
// user sees it: that may be of a repeat alone. It makes a dot that is not there, so
// that the user has been seen when it is fired.
func (n *Numbers) ClearDot(dot string, user uint64, w *shard.Write) (shows bool, err error) {
	board, err := n.boardNow(w.Deadline)
	if err != nil {
		return false, err
	}
	d, there := board.Dots[dot]
	made := shard.Token{}
	if !there {
		if board, made, err = n.makeName(raftfsm.BoardMakeDot, dot, w.Deadline); err != nil {
			return false, err
		}
		d, there = board.Dots[dot]
	}
	if !there {
		return false, n.touch(w, user)
	}
	row, err := n.move(w, user, raftfsm.CursorRaise, d.Number, d.Fired, made)
	if err != nil {
		return false, err
	}
	return d.Shows(row), nil
}
