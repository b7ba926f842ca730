package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

var (
	clusterX = strings.Repeat("0a", clusterIDBytes)
	clusterY = strings.Repeat("0b", clusterIDBytes)
)

// bareNode is a living member without a cluster.
func bareNode(name string, expect int) Member {
	return Member{Key: name + ".00000000", Name: name, ClusterAddr: name, Expect: uint8(expect), Alive: true}
}

func clusteredNode(name, cluster string) Member {
	m := bareNode(name, 0)
	m.ClusterID = cluster
	return m
}

func dead(m Member) Member {
	m.Alive = false
	return m
}

func identityOf(name string) Identity {
	return Identity{Format: identityFormat, NodeID: name, Instance: "00000000"}
}

func TestDecide(t *testing.T) {
	twin := bareNode("b", 2)
	twin.Key = "b.99999999"
	for name, tc := range map[string]struct {
		expect  int
		joining string
		members []Member
		set     string // of the step
		first   bool   // this node is the initiator
		cluster string
		rival   string
		err     error
		why     string // part of the reason
	}{
		"nobody, joining":              {why: "a node that has a cluster"},
		"nobody, expecting":            {expect: 3, why: "3 nodes with --bootstrap-expect 3; reached are 1: b"},
		"one is missing":               {expect: 3, members: []Member{bareNode("a", 3), dead(bareNode("c", 3))}, why: "reached are 2: a, b"},
		"all are there":                {expect: 3, members: []Member{bareNode("c", 3), bareNode("b", 3), bareNode("a", 3)}, set: "a.00000000,b.00000000,c.00000000", why: `node "a" to form the cluster of a, b, c`},
		"all are there, this is first": {expect: 2, members: []Member{bareNode("c", 2)}, set: "b.00000000,c.00000000", first: true},
		"one too many":                 {expect: 2, members: []Member{bareNode("c", 2), bareNode("d", 2)}, why: "there are 3: b, c, d"},
		"another number":               {expect: 2, members: []Member{bareNode("c", 3)}, why: `node "c" has 3, this one 2`},
		"those who join do not count":  {expect: 2, members: []Member{bareNode("c", 2), bareNode("a", 0)}, set: "b.00000000,c.00000000", first: true},
		"a cluster":                    {members: []Member{clusteredNode("c", clusterX), bareNode("a", 0)}, cluster: clusterX},
		"a cluster, expecting":         {expect: 2, members: []Member{clusteredNode("c", clusterX), bareNode("a", 2)}, cluster: clusterX},
		"a dead one's cluster":         {members: []Member{dead(clusteredNode("c", clusterX))}, why: "a node that has a cluster"},
		"two clusters":                 {members: []Member{clusteredNode("c", clusterX), clusteredNode("d", clusterY)}, err: ErrTwoClusters},
		"two clusters, one dead":       {members: []Member{clusteredNode("c", clusterX), dead(clusteredNode("d", clusterY))}, cluster: clusterX},
		"the cluster that was asked":   {joining: clusterX, members: []Member{clusteredNode("c", clusterX)}, cluster: clusterX},
		"not the one that was asked":   {joining: clusterX, members: []Member{clusteredNode("c", clusterY)}, why: "only with a new data directory"},
		"asked, and nobody is there":   {expect: 2, joining: clusterX, members: []Member{bareNode("a", 2)}, why: "asked to admit it"},
		"a member has the name":        {members: []Member{clusteredNode("c", clusterX), {Key: "b.99999999", Name: "b", ClusterID: clusterX, Alive: true}}, rival: "b.99999999", why: "give this one another"},
		"a dead member had the name":   {members: []Member{clusteredNode("c", clusterX), {Key: "b.99999999", Name: "b", ClusterID: clusterX}}, cluster: clusterX},
		"a later one has the name":     {expect: 2, members: []Member{twin}, why: `one of the two nodes "b" to be stopped`},
	} {
		t.Run(name, func(t *testing.T) {
			self := identityOf("b")
			self.Joining = tc.joining
			step := decide(self, tc.expect, tc.members)
			if keySet(step.set) != tc.set || step.initiate != tc.first || step.cluster != tc.cluster || step.rival.Key != tc.rival {
				t.Errorf("step %+v", step)
			}
			if !errors.Is(step.err, tc.err) || !strings.Contains(step.why, tc.why) {
				t.Errorf("error %v, waits for %q, want %v and %q", step.err, step.why, tc.err, tc.why)
			}
		})
	}
	self := identityOf("b")
	self.Instance = "99999999"
	if step := decide(self, 3, []Member{bareNode("b", 3)}); step.rival.Key != "b.00000000" {
		t.Errorf("the higher of two keys of one name decides %+v", step)
	}
}

// scriptedAsker answers with the functions of the test.
type scriptedAsker struct {
	form func(addr string, p Proposal) (Agreement, error)
	join func(addr string, r JoinRequest) (JoinAnswer, error)
}

func (a scriptedAsker) Form(_ context.Context, addr string, p Proposal) (Agreement, error) {
	return a.form(addr, p)
}

func (a scriptedAsker) Join(_ context.Context, addr string, r JoinRequest) (JoinAnswer, error) {
	return a.join(addr, r)
}

// memoryStore is a FormStore in memory that counts its writes.
type memoryStore struct {
	mu     sync.Mutex
	id     Identity
	writes []string
	err    error
}

func (s *memoryStore) SetPromised(set string) error {
	return s.write("promised "+set, func() { s.id.Promised = set })
}

func (s *memoryStore) SetJoining(c string) error {
	return s.write("joining "+c, func() { s.id.Joining = c })
}

func (s *memoryStore) SetCluster(c string, founder bool) error {
	return s.write("cluster", func() { s.id.ClusterID, s.id.Founder, s.id.Joining, s.id.Promised = c, founder, "", "" })
}

func (s *memoryStore) write(what string, change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.writes = append(s.writes, what)
		change()
	}
	return s.err
}

// formerOf returns a Former that sees the members.
func formerOf(t *testing.T, self Identity, expect int, asker Asker, members ...Member) (*Former, *formView, *memoryStore) {
	t.Helper()
	view, store := newFormView(), &memoryStore{id: self}
	for _, m := range members {
		view.show(m)
	}
	f, err := NewFormer(FormConfig{
		Identity: self, Node: catalog.Node{Key: self.Key(), Name: self.NodeID}, Expect: expect, Join: true,
		View: view, Asker: asker, Store: store, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, view, store
}

func proposalOf(to string, names ...string) Proposal {
	p := Proposal{To: to + ".00000000"}
	for _, name := range names {
		p.Set = append(p.Set, name+".00000000")
	}
	return p
}

// TestPromise: a node agrees to the set that it sees and, for 10 s, to no other. Neither a restart
// nor a repeated request shortens the 10 s.
func TestPromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, view, store := formerOf(t, identityOf("b"), 2, nil, bareNode("a", 2))
		agree := func(want string, p Proposal) {
			t.Helper()
			answer, err := f.HandleForm(t.Context(), p)
			if err != nil || answer.Agreed != (want == "") || !strings.Contains(answer.Why, want) {
				t.Errorf("%s after %v: %+v, %v, want %q", p.Set, store.writes, answer, err, want)
			}
		}
		ab, bc := proposalOf("b", "a", "b"), proposalOf("b", "0", "b")
		agree("this is node", proposalOf("c", "a", "b"))
		agree("this node sees a.00000000,b.00000000", proposalOf("b", "a", "b", "c"))
		agree("this node sees", bc)
		agree("", ab)
		time.Sleep(promiseFor - time.Second)
		agree("", ab) // the repeated request restarts the 10 s
		view.show(dead(bareNode("a", 2)))
		agree("waits for 2 nodes", ab)
		view.show(bareNode("0", 2))
		time.Sleep(promiseFor - time.Second)
		agree("has just agreed to a.00000000,b.00000000", bc)

		f, _, store = formerOf(t, store.id, 2, nil, bareNode("0", 2)) // a restart
		time.Sleep(promiseFor - time.Nanosecond)
		agree("has just agreed to", bc)
		time.Sleep(time.Nanosecond)
		agree("", bc)
		if want := []string{"promised 0.00000000,b.00000000"}; !slices.Equal(store.writes, want) {
			t.Errorf("writes %q, want %q", store.writes, want)
		}
		store.err = errors.New("disk")
		agree("", bc) // already stored
		time.Sleep(promiseFor)
		f, _, store = formerOf(t, identityOf("b"), 2, nil, bareNode("a", 2))
		store.err = errors.New("disk")
		if answer, err := f.HandleForm(t.Context(), ab); !errors.Is(err, store.err) || answer.Agreed {
			t.Errorf("with a disk that fails: %+v, %v", answer, err)
		}
	})
}

func TestWhoAgreesToNothing(t *testing.T) {
	joining := identityOf("b")
	joining.Joining = clusterX
	for name, tc := range map[string]struct {
		self    Identity
		expect  int
		members []Member
		set     []string
	}{
		"one that asks itself":       {identityOf("b"), 2, []Member{bareNode("c", 2)}, []string{"b", "c"}},
		"one that is to be alone":    {identityOf("b"), 1, []Member{bareNode("a", 1)}, []string{"a", "b"}},
		"one that only joins":        {identityOf("b"), 0, []Member{bareNode("a", 2)}, []string{"a", "b"}},
		"one that sees a cluster":    {identityOf("b"), 2, []Member{bareNode("a", 2), clusteredNode("c", clusterX)}, []string{"a", "b"}},
		"one that asked a cluster":   {joining, 2, []Member{bareNode("a", 2)}, []string{"a", "b"}},
		"one that expects another":   {identityOf("b"), 3, []Member{bareNode("a", 2)}, []string{"a", "b"}},
		"one that is not of the set": {identityOf("b"), 2, []Member{bareNode("a", 2)}, []string{"a", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, store := formerOf(t, tc.self, tc.expect, nil, tc.members...)
			answer, err := f.HandleForm(t.Context(), proposalOf("b", tc.set...))
			if err != nil || answer.Agreed || answer.Why == "" || len(store.writes) > 0 {
				t.Errorf("%+v, %v, writes %q", answer, err, store.writes)
			}
		})
	}
}

// TestInitiator: the initiator promises first, and asks until all have agreed. It founds a cluster within
// formTimeout of its first request, or never. Afterwards it agrees to no proposal.
func TestInitiator(t *testing.T) {
	for name, tc := range map[string]struct {
		answer  func(n int) (Agreement, error) // answer to the n-th request
		delay   time.Duration                  // delay of each answer
		founded bool                           // within 8 s
	}{
		"at once":            {func(int) (Agreement, error) { return Agreement{Agreed: true}, nil }, 0, true},
		"after lost answers": {func(n int) (Agreement, error) { return Agreement{Agreed: true}, lostUntil(n, 5) }, 0, true},
		"never":              {func(int) (Agreement, error) { return Agreement{Agreed: true}, errors.New("lost") }, 0, false},
		"refused":            {func(int) (Agreement, error) { return Agreement{Why: "no"}, nil }, 0, false},
		"refused at first":   {func(n int) (Agreement, error) { return Agreement{Agreed: n > 2, Why: "no"}, nil }, 0, true},
		"a nothing":          {func(int) (Agreement, error) { return Agreement{}, nil }, 0, false},
		"too late":           {func(int) (Agreement, error) { return Agreement{Agreed: true}, nil }, formTimeout, false},
		"in time":            {func(int) (Agreement, error) { return Agreement{Agreed: true}, nil }, formTimeout - time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asks := 0
				asker := scriptedAsker{form: func(addr string, p Proposal) (Agreement, error) {
					if addr != "b" || p.To != "b.00000000" || strings.Join(p.Set, ",") != "a.00000000,b.00000000" {
						t.Errorf("asks %s for %+v", addr, p)
					}
					asks++
					time.Sleep(tc.delay)
					return tc.answer(asks)
				}}
				f, _, store := formerOf(t, identityOf("a"), 2, asker, bareNode("b", 2))
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				defer cancel()
				id, err := f.Run(ctx)
				if (err == nil) != tc.founded || id.Founder != tc.founded || store.id.ClusterID != id.ClusterID {
					t.Errorf("%+v, %v, on disk %+v", id, err, store.id)
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want that of the context", err)
				}
				if store.writes[0] != "promised a.00000000,b.00000000" {
					t.Errorf("writes %q", store.writes)
				}
				if answer, _ := f.HandleForm(t.Context(), proposalOf("a", "0", "a")); answer.Agreed {
					t.Error("agrees after its end")
				}
			})
		})
	}
}

func lostUntil(n, least int) error {
	if n < least {
		return errors.New("lost")
	}
	return nil
}

// TestInitiatorLooksAgain: the initiator founds nothing if all nodes have agreed, but one more node
// has appeared meanwhile.
func TestInitiatorLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var view *formView
		f, view, store := formerOf(t, identityOf("a"), 2, scriptedAsker{form: func(string, Proposal) (Agreement, error) {
			view.show(clusteredNode("c", clusterX))
			return Agreement{Agreed: true}, nil
		}, join: func(addr string, r JoinRequest) (JoinAnswer, error) {
			return JoinAnswer{Admitted: addr == "c" && r.ClusterID == clusterX && r.Node.Key == "a.00000000"}, nil
		}}, bareNode("b", 2))
		id, err := f.Run(t.Context())
		if err != nil || id.ClusterID != clusterX || id.Founder || store.id.Joining != "" {
			t.Errorf("%+v, %v, want it to join", id, err)
		}
	})
}

func TestAloneAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		expect int
		join   bool
	}{"no flags": {0, false}, "expects one": {1, false}, "expects one and looks for others": {1, true}} {
		t.Run(name, func(t *testing.T) {
			store := &memoryStore{id: identityOf("a")}
			f, err := NewFormer(FormConfig{Identity: store.id, Expect: tc.expect, Join: tc.join, Store: store, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			id, err := f.Run(t.Context())
			if err != nil || !id.Founder || id != store.id || !validHex(id.ClusterID, clusterIDBytes) {
				t.Errorf("%+v, %v, on disk %+v", id, err, store.id)
			}
		})
	}
}

// TestAskedClusterIsNotForgottenWithTheFlags: a node without flags forms a cluster of itself alone,
// unless it has sent a JoinRequest to a cluster, which may have admitted the node.
func TestAskedClusterIsNotForgottenWithTheFlags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		self := identityOf("a")
		self.Joining = clusterX
		f, _, store := formerOf(t, self, 1, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := f.Run(ctx); !errors.Is(err, context.DeadlineExceeded) || len(store.writes) > 0 {
			t.Errorf("error %v, writes %q", err, store.writes)
		}
		if !strings.Contains(f.Waiting(), clusterX) {
			t.Errorf("waits for %q", f.Waiting())
		}
	})
}

func TestNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asker := scriptedAsker{join: func(string, JoinRequest) (JoinAnswer, error) { return JoinAnswer{Admitted: true}, nil }}
		rival := clusteredNode("a", clusterX)
		rival.Key, rival.GossipAddr = "a.99999999", "10.0.0.9:7402"

		f, _, store := formerOf(t, identityOf("a"), 0, asker, rival)
		began := time.Now()
		_, err := f.Run(t.Context())
		if !errors.Is(err, ErrNameTaken) || !strings.Contains(err.Error(), rival.GossipAddr) || time.Since(began) < rivalFor || len(store.writes) > 0 {
			t.Errorf("error %v after %v, writes %q", err, time.Since(began), store.writes)
		}

		f, view, _ := formerOf(t, identityOf("a"), 0, asker, rival, clusteredNode("b", clusterX))
		go func() {
			time.Sleep(rivalFor / 2)
			view.show(dead(rival))
		}()
		if id, err := f.Run(t.Context()); err != nil || id.ClusterID != clusterX {
			t.Errorf("%+v, %v, want it to join once the other is dead", id, err)
		}
	})
}

func TestTwoClustersAreRefused(t *testing.T) {
	f, _, store := formerOf(t, identityOf("a"), 3, nil, clusteredNode("b", clusterX), clusteredNode("c", clusterY))
	_, err := f.Run(t.Context())
	if !errors.Is(err, ErrTwoClusters) || !strings.Contains(err.Error(), clusterX) || !strings.Contains(err.Error(), clusterY) || len(store.writes) > 0 {
		t.Errorf("error %v, writes %q", err, store.writes)
	}
}

func TestFormerIsForNodesWithoutCluster(t *testing.T) {
	id := identityOf("a")
	id.ClusterID = clusterX
	if _, err := NewFormer(FormConfig{Identity: id}); !errors.Is(err, ErrHasCluster) {
		t.Errorf("error %v, want ErrHasCluster", err)
	}
	if _, err := NewFormer(FormConfig{Identity: identityOf("a"), Expect: ExpectMax + 1}); err == nil {
		t.Error("too many are expected, and no error")
	}
}

// TestDataDirKeepsForming: a DataDir stores each step of forming.
func TestDataDirKeepsForming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, t.TempDir(), "a")
		view := newFormView()
		view.show(bareNode("zz", 2))
		f, err := NewFormer(FormConfig{
			Identity: d.Identity, Expect: 2, Join: true, View: view, Store: d, Logger: slog.New(slog.DiscardHandler),
			Asker: scriptedAsker{form: func(string, Proposal) (Agreement, error) { return Agreement{Agreed: true}, nil }},
		})
		if err != nil {
			t.Fatal(err)
		}
		id, err := f.Run(t.Context())
		if err != nil || id != d.Identity || !id.Founder {
			t.Fatalf("%+v, %v, on disk %+v", id, err, d.Identity)
		}
		if again := reopened(t, d); again.Identity != id {
			t.Errorf("came back as %+v", again.Identity)
		}
	})
}
