package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// join makes a further replica, number i, a voter.
func (r *replicas) join(t *testing.T, i int) {
	t.Helper()
	r.cfgs = append(r.cfgs, testConfig(t, testMux(t), fmt.Sprintf("n%d", i+1)))
	r.groups, r.fsms = append(r.groups, nil), append(r.fsms, nil)
	r.open(t, i)
	r.addVoter(t, r.cfgs[i])
}

// A replica moves from n1 to n4 while n3 is down, then n2 is lost for good. n3 does not know n4,
// but n4 has all acknowledged entries. n3 and n4 are a majority, so n4 is elected.
func TestMajorityOfAConfigurationThatOneMissed(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	r.add(t, 7, -1)
	r.mustAgree(t, -1)
	const n1, n2, n3, n4 = 0, 1, 2, 3
	mustClose(t, r.groups[n3])
	r.join(t, n4)
	eventually(t, "n1 is removed", func() bool {
		l := r.groups[r.leader(t, n3)]
		if l == r.groups[n1] {
			_ = l.Transfer(Member{"n4", r.cfgs[n4].Mux.Addr().String()})
			return false
		}
		return l.raft.RemoveServer("n1", 0, 5*time.Second).Error() == nil
	})
	r.add(t, 5, n3)
	mustClose(t, r.groups[n1])
	mustClose(t, r.groups[n2])
	eventually(t, "n4 leads no more", func() bool { return r.groups[n4].Leader() == "" })
	r.open(t, n3)
	r.add(t, 1, -1)
	for _, i := range []int{n3, n4} {
		eventually(t, "all is there", func() bool { sum, _ := r.fsms[i].state(); return sum >= 13 })
	}
}

// ask asks the follower for a pre-vote and then for a vote. A follower that grants a vote forgets
// its leader.
func (p *playedLeader) ask(from string, term, last, lastTerm uint64, transfer bool) (would, granted bool) {
	p.t.Helper()
	var pre raft.RequestPreVoteResponse
	_ = p.trans.RequestPreVote("n1", p.to(), &raft.RequestPreVoteRequest{
		RPCHeader: headerOf(from), Term: term, LastLogIndex: last, LastLogTerm: lastTerm,
	}, &pre)
	var resp raft.RequestVoteResponse
	_ = p.trans.RequestVote("n1", p.to(), &raft.RequestVoteRequest{
		RPCHeader: headerOf(from), Term: term, LastLogIndex: last, LastLogTerm: lastTerm, LeadershipTransfer: transfer,
	}, &resp)
	return pre.Granted, resp.Granted
}

// A vote depends on the candidate's term and log. A candidate that the voter's configuration lacks
//
//  1. gets the vote if its log is at least as long; only one candidate in a term gets it;
//  2. gets none while there is a leader, even if a leader hands over to it;
//  3. gets none if it was deleted.
func TestVoteForACandidateThatTheVoterDoesNotKnow(t *testing.T) {
	begin := func(t *testing.T, led bool) *playedLeader {
		p := playLeaderOf(t, storage.LogStoreBoltDB, func(cfg *Config) {
			cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3#5", "a3"}}
			if !led {
				cfg.Timing = Timing{50 * time.Millisecond, time.Hour, 50 * time.Millisecond, time.Hour}
			}
		})
		p.mustAppend(2, 1, 1, 3, entriesOf(2, 2, 5)...)
		if !led {
			eventually(t, "it knows no leader", func() bool { return p.Leader() == "" })
		}
		return p
	}
	for name, c := range map[string]struct {
		from           string
		last, lastTerm uint64
		led, transfer  bool
		want           bool
	}{
		"as long":                         {from: "n4", last: 5, lastTerm: 2, want: true},
		"of a later term":                 {from: "n4", last: 3, lastTerm: 3, want: true},
		"too short":                       {from: "n4", last: 4, lastTerm: 2},
		"there is a leader":               {from: "n4", last: 5, lastTerm: 2, led: true},
		"it may be removed, and is told":  {from: "n4", last: 9, lastTerm: 2, led: true, transfer: true},
		"deleted before n3#5 began":       {from: "n3#4", last: 9, lastTerm: 2},
		"deleted, and is told":            {from: "n3", last: 9, lastTerm: 2, led: true, transfer: true},
		"begun after n3#5, of which none": {from: "n3#6", last: 5, lastTerm: 2, want: true},
		"a voter that it knows":           {from: "n3#5", last: 5, lastTerm: 2, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, c.led)
			term := p.raft.CurrentTerm() + 1
			would, granted := p.ask(c.from, term, c.last, c.lastTerm, c.transfer)
			if would != c.want || granted != c.want {
				t.Errorf("would %v, granted %v", would, granted)
			}
			if c.led && p.raft.CurrentTerm() != term-1 {
				t.Errorf("term %d after %d, with a leader", p.raft.CurrentTerm(), term-1)
			}
			if !c.want {
				return
			}
			if _, other := p.ask("n2", term, 9, 2, false); other {
				t.Error("it votes for two in one term")
			}
			if _, again := p.ask(c.from, term, c.last, c.lastTerm, false); !again {
				t.Error("it does not repeat its vote")
			}
		})
	}
	t.Run("the leader hands over to a voter that it knows", func(t *testing.T) {
		p := begin(t, true)
		if _, granted := p.ask("n3#5", 3, 5, 2, true); !granted {
			t.Error("refused")
		}
	})
}

// A candidate that receives a snapshot in its own term follows the sender. Once its timer fires, it
// votes for others again.
func TestCandidateIsSentASnapshot(t *testing.T) {
	p := playLeaderOf(t, storage.LogStoreBoltDB, func(cfg *Config) {
		cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}
		cfg.Timing = Timing{50 * time.Millisecond, time.Hour, 50 * time.Millisecond, time.Hour}
	})
	p.mustAppend(2, 1, 1, 3, entriesOf(2, 2, 5)...)
	eventually(t, "it campaigns", func() bool { return p.raft.State() == raft.Candidate })
	p.mustInstall(p.raft.CurrentTerm(), 10, 2)
	eventually(t, "it knows no leader", func() bool { return p.Leader() == "" })
	if would, granted := p.ask("n3", p.raft.CurrentTerm()+1, 20, 2, false); !would || !granted {
		t.Errorf("would %v, granted %v", would, granted)
	}
}

// A replica that is told to lead stays a candidate when the winner of that term sends it an append,
// but it knows the winner as its leader. If the winner is lost, the candidate still votes for
// others.
func TestCandidateOfAHandoverLosesTheElection(t *testing.T) {
	p := playLeaderOf(t, storage.LogStoreBoltDB, func(cfg *Config) {
		cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}
	})
	p.mustAppend(2, 1, 1, 3, entriesOf(2, 2, 5)...)
	mustDo(t, p.trans.TimeoutNow("n1", p.to(), &raft.TimeoutNowRequest{RPCHeader: headerOf("n2")}, &raft.TimeoutNowResponse{}))
	eventually(t, "it campaigns", func() bool { return p.raft.State() == raft.Candidate && p.raft.CurrentTerm() == 3 })
	p.mustAppend(3, 5, 2, 3, entriesOf(3, 6, 6)...)
	if p.raft.State() != raft.Candidate || p.Leader() != "n2" {
		t.Fatalf("%v, led by %q: raft has another rule now", p.raft.State(), p.Leader())
	}
	if would, granted := p.ask("n3", 4, 6, 3, false); !would || !granted {
		t.Errorf("would %v, granted %v", would, granted)
	}
}

// Uncommitted entries are sent only to replicas that are voters in the leader's latest
// configuration and in the configurations among the entries.
func TestWithheld(t *testing.T) {
	conf := func(index uint64, voters ...raft.ServerID) *raft.Log {
		c := raft.Configuration{Servers: []raft.Server{{ID: "n9", Address: "a9", Suffrage: raft.Nonvoter}}}
		for _, id := range voters {
			c.Servers = append(c.Servers, raft.Server{ID: id, Address: raft.ServerAddress("a" + id[1:])})
		}
		return &raft.Log{Index: index, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
	}
	servers := raft.DecodeConfiguration(conf(1, "n1", "n2").Data).Servers
	for name, c := range map[string]struct {
		to      raft.ServerID
		commit  uint64
		entries []*raft.Log
		want    bool
	}{
		"a voter":                         {"n2", 3, entriesOf(2, 4, 5), false},
		"a non-voter":                     {"n9", 4, entriesOf(2, 4, 5), true},
		"a non-voter, committed":          {"n9", 5, entriesOf(2, 4, 5), false},
		"a removed one":                   {"n3", 4, entriesOf(2, 4, 5), true},
		"one that loses its vote":         {"n2", 4, []*raft.Log{conf(5, "n1")}, true},
		"one that lost its vote":          {"n2", 5, []*raft.Log{conf(5, "n1")}, false},
		"one that had none and gets it":   {"n2", 5, []*raft.Log{conf(5, "n1"), conf(6, "n1", "n2")}, false},
		"a voter that must commit behind": {"n2", 5, append([]*raft.Log{conf(5, "n1")}, entriesOf(2, 6, 7)...), false},
	} {
		if got := withheld(c.to, c.entries, c.commit, servers); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A leader that was deposed sends nothing more: another leader may have committed other entries at
// the indexes of the entries that it held back.
func TestDeposedLeaderReleasesNothing(t *testing.T) {
	p := playLeaderOf(t, storage.LogStoreBoltDB, func(cfg *Config) { cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}} })
	p.mustAppend(2, 1, 1, 5, entriesOf(2, 2, 5)...)
	held := &raft.AppendEntriesRequest{Term: 1, Entries: entriesOf(1, 4, 5)}
	if err := p.Replica.trans.filter.awaitCommit("n9", held, newClosedOnce()); !errors.Is(err, errNotLeading) {
		t.Errorf("released: %v", err)
	}
}

// pausingReader reads zeros, and calls pause before the second read.
type pausingReader struct {
	reads int
	pause func()
}

func (r *pausingReader) Read(p []byte) (int, error) {
	if r.reads++; r.reads == 2 {
		r.pause()
	}
	clear(p)
	return len(p), nil
}

// A leader that is deposed, or whose disk hangs, ends the call with which it sends a snapshot. Then
// the follower's main loop no longer reads the snapshot, and the follower votes.
func TestDeposedLeaderEndsItsSnapshot(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(*Replica)
		want error
	}{
		"deposed": {func(g *Replica) {
			p := &playedLeader{Replica: g, t: t, cfg: g.cfg}
			args := &raft.AppendEntriesRequest{RPCHeader: headerOf("n3"), Term: g.raft.CurrentTerm() + 1}
			mustDo(t, p.dialler().AppendEntries("n2", p.to(), args, &raft.AppendEntriesResponse{}))
		}, errNotLeading},
		"disk hangs": {func(g *Replica) { g.muted.Store(true) }, errHangs},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, testMux(t), "n2")
			cfg.Initial = aloneIn(cfg)
			leader := mustOpen(t, cfg)
			mustBeReady(t, leader)
			follower := playLeader(t, storage.LogStoreBoltDB)
			term := leader.raft.CurrentTerm()
			args := &raft.InstallSnapshotRequest{
				RPCHeader: headerOf("n2"), SnapshotVersion: raft.SnapshotVersionMax, Term: term, LastLogIndex: 20, LastLogTerm: term,
				Configuration: raft.EncodeConfiguration(follower.Configuration()), ConfigurationIndex: 1, Size: 1 << 30,
			}
			state := &pausingReader{pause: func() { test.end(leader) }}
			err := leader.trans.InstallSnapshot("n1", follower.to(), args, &raft.InstallSnapshotResponse{}, state)
			if !errors.Is(err, test.want) || state.reads > 3 {
				t.Errorf("it ended after %d reads: %v", state.reads, err)
			}
			if _, granted := follower.ask("n3", term+1, 20, term, true); !granted {
				t.Error("the follower does not vote")
			}
		})
	}
}

// A leader loses its majority while it removes the vote of a replica. The new configuration has not
// reached that replica: with it, the replica would not campaign, and might refuse the others.
func TestLostVoteIsNotToldBeforeItIsCommitted(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	r.join(t, 3)
	const tries = 10 // on a busy machine, the lease may end before the leader begins
	for range tries {
		r.add(t, 1, -1)
		r.mustAgree(t, -1)
		l := r.leader(t, -1)
		others := r.others(l)
		demoted := others[0]
		for _, g := range others[1:] {
			mustClose(t, g)
		}
		_ = r.groups[l].raft.DemoteVoter(demoted.ID(), 0, eventuallyMax).Error() // the call fails when the lease ends
		if got := SuffrageOf(demoted.Configuration().Servers, demoted.ID()); got != raft.Voter {
			t.Errorf("%s has the configuration that takes its vote, and nobody else", demoted.ID())
		}
		if SuffrageOf(r.groups[l].Configuration().Servers, demoted.ID()) != raft.Voter {
			return
		}
		for i, g := range r.groups {
			if slices.Contains(others[1:], g) {
				r.open(t, i)
			}
		}
	}
	t.Errorf("in %d tries, the leader has not begun to", tries)
}
