package replica

import (
	"github.com/hashicorp/raft"
)

// A leader whose disk hangs goes on sending heartbeats: raft sends them beside the write that
// hangs. Nobody else would lead, and the group would stand still until the disk answers. So
// while the log takes no entries, a replica
//
//   - sends no appends, so that its followers miss their leader and elect another;
//   - asks the follower that has the most to campaign at once, as a transfer would. raft
//     itself cannot hand over: its main loop waits for the disk.
//
// Both are safe at any time: Raft holds with any message lost, and with a campaign of anybody
// at any moment. If no follower can lead, appends go on once the disk answers.

// noteHang takes note whether the log takes entries no more. It is called by one goroutine.
func (g *Replica) noteHang(hangs bool) {
	if g.hangs.Swap(hangs) == hangs {
		return
	}
	if g.cfg.Hangs != nil {
		g.cfg.Hangs(hangs)
	}
	if hangs && g.raft.State() == raft.Leader {
		g.cfg.Logger.Warn("the disk does not take entries of a group that is led here: another node is asked to lead", "group", g.cfg.Group)
		g.wg.Go(g.handOverHung)
	}
}

// Hangs reports whether the log takes entries no more.
func (g *Replica) Hangs() bool { return g.hangs.Load() }

// handOverHung asks the voter that has the most of the log to campaign.
func (g *Replica) handOverHung() {
	var best raft.Server
	var most uint64
	for _, s := range g.Configuration().Servers {
		if s.Suffrage != raft.Voter || s.ID == g.ID() {
			continue
		}
		if last := g.trans.contact(s.ID).last(); best.ID == "" || last > most {
			best, most = s, last
		}
	}
	if best.ID == "" {
		return
	}
	self := g.ID()
	ask := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(self), Addr: g.trans.EncodePeer(self, g.trans.LocalAddr()),
	}}
	if err := g.trans.TimeoutNow(best.ID, best.Address, ask, &raft.TimeoutNowResponse{}); err != nil {
		g.cfg.Logger.Info("the voter that was asked to lead in place of a node whose disk hangs did not answer", "group", g.cfg.Group, "voter", string(best.ID), "err", err)
	}
}
