package replica

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// A leader whose disk hangs still sends heartbeats, because raft sends them beside the hanging
// write. So no other node would campaign, and the group would stop until the disk answers. The same
// happens if the state machine hangs, for example because its own disk is full. Therefore, while
// the state machine or a write to the log hangs, and the other voters that answer are a majority, a
// leader
//
//   - sends no appends, so that its followers elect another leader;
//   - asks the follower with the longest log to campaign at once, as in a transfer. raft's own
//     transfer would wait for the disk.
//
// Both are safe at any time: Raft tolerates lost messages, and a campaign of any replica at any
// moment. If the other voters that answer are no majority, the leader stays. A candidate could not
// win without this leader's vote, and the hanging disk cannot store that vote. The candidate would
// only make the waiting writes fail. Once the leader's log has waited for disk space for 10 s, or
// its state machine has hung for as long, the leader sends no appends in any case. The other voters
// may be a majority without its knowledge, because one of them is in a later term or cut off from
// the leader. The leader's heartbeats would then keep the others from voting.
//
// Three rules keep short recurring hangs from moving leaders back and forth:
//
//   - A leader stays while a write takes less than twice as long as the longest hang of the last
//     minute (storage.WatchStalls). If all disks are slow, no voter could replace it: an election
//     needs four sequential writes within 1 to 2 s.
//   - A node whose log hung receives no leaderships for a minute (tiering.Headroom.Unfit).
//   - While the state machine of a follower hangs, the follower refuses a leader's order to
//     campaign, and DetectFailure does not make it campaign. Only raft's own timeout still makes it
//     campaign, later than the other voters.

// noteHang records whether a write to the log, or the state machine, hangs. One goroutine calls it
// repeatedly.
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
		g.wg.Go(func() {
			if err := g.trans.askToLead(g.ID(), heir); err != nil {
				g.cfg.Logger.Info("the voter that was asked to lead in place of a node whose disk hangs did not answer", "group", g.cfg.Group, "voter", string(heir.ID), "err", err)
			}
		})
	case long && heir.ID != "":
		g.muted.Store(true)
		g.cfg.Logger.Warn("the "+what+" does not take entries of a group that is led here: this node sends its followers nothing until it does", "group", g.cfg.Group)
	}
}

// Hangs reports whether a write to the log hangs.
func (g *Replica) Hangs() bool { return g.hangs.Load() }

// heir returns the voter with the longest log among the voters that answered this leader recently.
// suffice reports whether these voters, without this leader, are a majority.
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
