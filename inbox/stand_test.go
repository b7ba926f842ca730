package inbox

import (
	"errors"
	"testing"

	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

func asOfNow() *shard.ReadOptions {
	return &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: soon()}
}

func mustPublish(t *testing.T, n *Numbers, channel string, times int) {
	t.Helper()
	for range times {
		if _, err := n.Publish(channel, &shard.Write{Deadline: soon()}); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *Numbers) mustStand(t *testing.T, when, channel string, user uint64, want Notices) {
	t.Helper()
	if got, err := n.Notices(channel, user, Stand{}, asOfNow()); err != nil || got != want {
		t.Errorf("%s: user %d in %s: %+v, %v, want %+v", when, user, channel, got, err, want)
	}
}

// A user who reads a channel before its first notice has a position before that notice, whatever
// number the read names. Two published notices are then unread.
func TestReadsBeforeTheFirstNotice(t *testing.T) {
	node := openNode(t)
	n := NewNumbers(node)
	zero, five := int64(0), int64(5)
	reads := map[string]func(channel string, w *shard.Write) (Notices, error){
		"latest":   func(c string, w *shard.Write) (Notices, error) { return n.ReadNotices(c, 1, nil, nil, w) },
		"up_to_0":  func(c string, w *shard.Write) (Notices, error) { return n.ReadNotices(c, 1, &zero, nil, w) },
		"up_to_5":  func(c string, w *shard.Write) (Notices, error) { return n.ReadNotices(c, 1, &five, nil, w) },
		"since_0":  func(c string, w *shard.Write) (Notices, error) { return n.ReadNotices(c, 1, nil, &zero, w) },
		"since_5":  func(c string, w *shard.Write) (Notices, error) { return n.ReadNotices(c, 1, nil, &five, w) },
		"repeated": nil,
	}
	reads["repeated"] = func(c string, w *shard.Write) (Notices, error) {
		w.ID = dedup.ByKey([]byte("k"))
		if _, err := n.ReadNotices(c, 1, nil, nil, w); err != nil {
			return Notices{}, err
		}
		return n.ReadNotices(c, 1, nil, nil, w)
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			w := &shard.Write{Deadline: soon()}
			if got, err := read(name, w); err != nil || got != (Notices{Seen: true}) {
				t.Fatalf("read %+v, %v", got, err)
			}
			if w.Duplicate != (name == "repeated") {
				t.Errorf("duplicate %v", w.Duplicate)
			}
			mustPublish(t, n, name, 2)
			n.mustStand(t, "two notices later", name, 1, Notices{Unread: 2, Seen: true, Latest: 2})
			n.mustStand(t, "two notices later", name, 2, Notices{Latest: 2})
		})
	}
}

// A retract was refused because of too many retracted notices. Its repeat gets the same refusal, not the
// refusal for a missing notice.
func TestRepeatedRetractNamesItsReason(t *testing.T) {
	node := openNode(t)
	n := NewNumbers(node)
	full := &unread.Channel{Number: 1, Latest: 3 * unread.RetractedMax}
	for seq := int64(2); len(full.Retracted) < unread.RetractedMax; seq += 2 {
		full.Retracted = append(full.Retracted, seq)
	}
	w := &shard.Write{Deadline: soon()}
	if _, err := n.writeBoard(w, &unread.BoardOp{Kind: unread.PutChannel, Name: "news", Channel: full}); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		w := &shard.Write{ID: dedup.ByKey([]byte("full")), Deadline: soon()}
		if _, full := errors.AsType[*errs.ArgumentError](n.Retract("news", 3*unread.RetractedMax, w)); !full {
			t.Errorf("round %d: it is not told that too many are retracted", round)
		}
		w = &shard.Write{ID: dedup.ByKey([]byte("missing")), Deadline: soon()}
		if err := n.Retract("news", 3*unread.RetractedMax+1, w); !errors.Is(err, ErrNoNotice) {
			t.Errorf("round %d: of a notice that there is not: %v", round, err)
		}
	}
}

// If ReadNotices or ClearDot created the channel or dot, the returned token covers the write to the
// board too. So a node that lags waits for that write.
func TestTokenOfAReadThatMadeItsChannel(t *testing.T) {
	node := openNode(t)
	n := NewNumbers(node)
	w := &shard.Write{Deadline: soon()}
	if _, err := n.ReadNotices("news", 1, nil, nil, w); err != nil || len(w.Token.At) != 2 {
		t.Errorf("token %+v, %v", w.Token, err)
	}
	if _, err := n.ClearDot("shop", 1, w); err != nil || len(w.Token.At) != 2 {
		t.Errorf("token %+v, %v", w.Token, err)
	}
	if _, err := n.ClearDot("shop", 1, w); err != nil || len(w.Token.At) != 1 {
		t.Errorf("token of one that is there %+v, %v", w.Token, err)
	}
}

// A user who clears a dot before SetDot is not a new user for the dot. So the user sees the dot
// once it is fired, even if new users do not.
func TestClearsBeforeTheDotIsMade(t *testing.T) {
	n := NewNumbers(openNode(t))
	if shows, err := n.ClearDot("shop", 1, &shard.Write{Deadline: soon()}); err != nil || shows {
		t.Fatalf("cleared: %v, %v", shows, err)
	}
	if fired, err := n.SetDot("shop", false, &shard.Write{Deadline: soon()}); err != nil || fired != 0 {
		t.Fatalf("set: %d, %v", fired, err)
	}
	// ClearDot does not change the settings of an existing dot.
	if _, err := n.ClearDot("shop", 3, &shard.Write{Deadline: soon()}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Fire("shop", &shard.Write{Deadline: soon()}); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[uint64]bool{1: true, 2: false, 3: true} {
		if shows, err := n.Shows("shop", user, asOfNow()); err != nil || shows != want {
			t.Errorf("user %d sees it: %v, %v", user, shows, err)
		}
	}
}

// Reads of missing channels and dots write nothing.
func TestLooksMakeNothing(t *testing.T) {
	n := NewNumbers(openNode(t))
	n.mustStand(t, "never published", "news", 1, Notices{})
	if _, err := n.Shows("shop", 1, asOfNow()); err != nil {
		t.Error(err)
	}
	if err := n.Poll(&Poll{Users: []uint64{1}, Channels: []string{"news"}, Dots: []string{"shop"}}, asOfNow()); err != nil {
		t.Error(err)
	}
	if board, err := n.board(asOfNow()); err != nil || len(board.Channels)+len(board.Dots) > 0 {
		t.Errorf("board %+v, %v", board, err)
	}
}
