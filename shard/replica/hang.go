package replica

import (
	"time"

	"github.com/hashicorp/raft"
)

// A leader whose disk hangs goes on sending heartbeats: raft sends them beside the write that
// hangs. Nobody else would lead, and the group would stand still until the disk answers. So
// while the log takes no entries, and the other voters that answer are a majority, a leader
//
//   - sends no appends, so that its followers miss it and elect another;
//   - asks the follower that has the most to campaign at once, as a transfer would. raft
//     itself cannot hand over: its main loop waits for the disk.
//
// Both are safe at any time: Raft holds with any message lost, and with a campaign of anybody
// at any moment. A leader whose vote the others need goes on: it would only be deposed once its
// disk answers, and fail the writes that wait for it.
//
// Short hangs that come again do not move leaders to and fro:
//
//   - A leader goes on while a write takes less than twice as long as those that hung within the last
//     minute (storage.WatchStalls). If all disks are slow, nobody could take its place: an election
//     is four writes, one after the other, within 1 to 2 s.
//   - A node whose disk hung is given no leads for a minute (headroom.Unfit).

// noteHang notes whether the log takes entries no more, and whether that is unusual. One goroutine
// calls it, again and again while the log hangs.
func (g *Replica) noteHang(hangs, unusual bool) {
	if g.hangs.Swap(hangs) != hangs && g.cfg.Hangs != nil {
		g.cfg.Hangs(hangs)
	}
	if !hangs {
		g.muted.Store(false)
		return
	}
	if !unusual || g.muted.Load() || g.raft.State() != raft.Leader {
		return
	}
	if heir, suffice := g.heir(); suffice {
		g.muted.Store(true)
		g.cfg.Logger.Warn("the disk does not take entries of a group that is led here: another node is asked to lead", "group", g.cfg.Group)
		g.wg.Go(func() { g.handOverHung(heir) })
	}
}

// Hangs reports whether the log takes entries no more.
func (g *Replica) Hangs() bool { return g.hangs.Load() }

// heir returns the voter that has the most of the log among those that answered this leader
// lately, and whether they are a majority without it.
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

// handOverHung asks a voter to campaign.
func (g *Replica) handOverHung(to raft.Server) {
	self := g.ID()
	ask := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(self), Addr: g.trans.EncodePeer(self, g.trans.LocalAddr()),
	}}
	if err := g.trans.TimeoutNow(to.ID, to.Address, ask, &raft.TimeoutNowResponse{}); err != nil {
		g.cfg.Logger.Info("the voter that was asked to lead in place of a node whose disk hangs did not answer", "group", g.cfg.Group, "voter", string(to.ID), "err", err)
	}
}
