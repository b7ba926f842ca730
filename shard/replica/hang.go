package replica

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// A leader whose disk hangs still sends heartbeats, because raft sends them beside the hanging
// write. So no other node would lead, and the group would stand still until the disk answers. The
// same is true if the state machine hangs, for example because its own disk is full.
// Therefore, while the log or the state machine takes no entries and a majority of other voters
// answers, a leader
//
//   - sends no appends, so that its followers miss it and elect another;
//   - asks the follower with the most entries to campaign at once, as in a transfer. raft itself
//     cannot hand over: its main loop waits for the disk.
//
// Both are safe at any time: Raft tolerates any lost message, and a campaign of any replica at any
// moment. If the others need this leader's vote, it stays leader: a candidate would depose it only
// once its disk answers, and then fail the writes that wait for the disk. If its log waits for room
// for 10 s, the leader sends no appends in any case. The others may be a majority that it does not
// see, because one of them is in a later term or cut off from it. Its heartbeats would keep the other
// voters from voting.
//
// Short hangs that recur do not move leaders back and forth:
//
//   - A leader stays while a write takes less than twice as long as those that hung within the last
//     minute (storage.WatchStalls). If all disks are slow, nobody could replace it: an election is
//     four sequential writes within 1 to 2 s.
//   - A node whose log hung gets no new leaderships for a minute (headroom.Unfit).
//   - While the state machine of a follower hangs, the follower refuses a leader's order to campaign,
//     and DetectFailure does not make it campaign. raft's own timeout still does, later than at the
//     other voters.

// noteHang records whether the log and the state machine have stopped taking entries. One goroutine
// calls it repeatedly.
func (g *Replica) noteHang(storing, applying storage.Hang) {
	if g.hangs.Swap(storing.Hangs) != storing.Hangs && g.cfg.Hangs != nil {
		g.cfg.Hangs(storing.Hangs)
	}
	g.applyHangs.Store(applying.Hangs)
	if !storing.Hangs && !applying.Hangs {
		g.muted.Store(false)
		return
	}
	long := storing.Long || applying.Long
	if !storing.Unusual && !applying.Unusual && !long || g.muted.Load() || g.raft.State() != raft.Leader {
		return
	}
	what := "disk"
	if !storing.Hangs {
		what = "state machine"
	}
	switch heir, suffice := g.heir(); {
	case suffice:
		g.muted.Store(true)
		g.cfg.Logger.Warn("the "+what+" does not take entries of a group that is led here: another node is asked to lead", "group", g.cfg.Group)
		g.wg.Go(func() { g.handOverHung(heir) })
	case long && heir.ID != "":
		g.muted.Store(true)
		g.cfg.Logger.Warn("the "+what+" does not take entries of a group that is led here: this node sends its followers nothing until it does", "group", g.cfg.Group)
	}
}

// Hangs reports whether the log has stopped taking entries.
func (g *Replica) Hangs() bool { return g.hangs.Load() }

// heir returns the voter with the longest log among those that answered this leader recently.
// suffice reports whether these voters are a majority without this leader.
func (g *Replica) heir() (best raft.Server, suffice bool) {
	var most uint64
	voters, there := 0, 0
	for _, s := range g.Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		c := g.trans.contact(s.ID)
		if s.ID == g.ID() || !c.recent(time.Now(), g.raft.CurrentTerm(), g.cfg.Timing.Heartbeat) {
			continue
		}
		there++
		if last := c.last(); best.ID == "" || last > most {
			best, most = s, last
		}
	}
	return best, there > voters/2
}

// handOverHung asks a voter to campaign at once.
func (g *Replica) handOverHung(to raft.Server) {
	self := g.ID()
	ask := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(self), Addr: g.trans.EncodePeer(self, g.trans.LocalAddr()),
	}}
	if err := g.trans.TimeoutNow(to.ID, to.Address, ask, &raft.TimeoutNowResponse{}); err != nil {
		g.cfg.Logger.Info("the voter that was asked to lead in place of a node whose disk hangs did not answer", "group", g.cfg.Group, "voter", string(to.ID), "err", err)
	}
}
