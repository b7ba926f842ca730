package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

func TestJoinAsksUntilOneAnswers(t *testing.T) {
	lost := errors.New("lost")
	members := []Member{clusteredNode("a", clusterX), clusteredNode("b", clusterX), clusteredNode("c", clusterX)}
	for name, tc := range map[string]struct {
		answers map[string]JoinAnswer // of the members that answer
		members []Member
		want    error
	}{
		"all admit":      {map[string]JoinAnswer{"a": {Admitted: true}, "b": {Admitted: true}, "c": {Admitted: true}}, members, nil},
		"one answers":    {map[string]JoinAnswer{"b": {Admitted: true}}, members, nil},
		"one refuses":    {map[string]JoinAnswer{"c": {Refused: "the name is taken"}}, members, ErrRefused},
		"a nothing":      {map[string]JoinAnswer{"c": {}}, members, ErrRefused},
		"nobody answers": {nil, members, ErrNobodyAnswered},
		"nobody is":      {nil, nil, ErrNobodyAnswered},
	} {
		t.Run(name, func(t *testing.T) {
			asker := scriptedAsker{join: func(addr string, r JoinRequest) (JoinAnswer, error) {
				if answer, ok := tc.answers[addr]; ok {
					return answer, nil
				}
				return JoinAnswer{}, lost
			}}
			err := Join(t.Context(), asker, tc.members, JoinRequest{ClusterID: clusterX})
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if answer := tc.answers["c"]; answer.Refused != "" && !strings.Contains(err.Error(), answer.Refused) {
				t.Errorf("error %v does not say why", err)
			}
		})
	}
}

// TestJoinAfterACrash: a node that crashes at any point between its first request and its last write joins the same
// cluster after a restart. At worst it repeats the JoinRequest.
func TestJoinAfterACrash(t *testing.T) {
	disk := errors.New("disk")
	for name, fail := range map[string]func(step string) (before, after bool){
		"before it is kept that it asks": func(s string) (bool, bool) { return s == "joining "+clusterX, false },
		"after":                          func(s string) (bool, bool) { return false, s == "joining "+clusterX },
		"asked, not kept":                func(s string) (bool, bool) { return s == "cluster", false },
		"kept, not told":                 func(s string) (bool, bool) { return false, s == "cluster" },
	} {
		t.Run(name, func(t *testing.T) {
			admitted := 0
			asker := scriptedAsker{join: func(_ string, r JoinRequest) (JoinAnswer, error) {
				admitted++
				return JoinAnswer{Admitted: r.ClusterID == clusterX}, nil
			}}
			f, _, store := formerOf(t, identityOf("a"), 0, asker, clusteredNode("b", clusterX))
			f.cfg.Store = &crashingStore{memoryStore: store, fail: fail, err: disk}
			if _, err := f.Run(t.Context()); !errors.Is(err, disk) {
				t.Fatalf("error %v, want that of the disk", err)
			}
			if store.id.ClusterID == "" {
				self := store.id
				f, _, store = formerOf(t, self, 0, asker, clusteredNode("b", clusterX))
				if _, err := f.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if store.id.ClusterID != clusterX || store.id.Founder || admitted == 0 {
				t.Errorf("on disk %+v, asked %d times", store.id, admitted)
			}
		})
	}
}

// crashingStore ends the process before or after a write.
type crashingStore struct {
	*memoryStore
	fail func(step string) (before, after bool)
	err  error
}

func (s *crashingStore) around(step string, write func() error) error {
	before, after := s.fail(step)
	if before {
		return s.err
	}
	if err := write(); err != nil || !after {
		return err
	}
	return s.err
}

func (s *crashingStore) SetJoining(c string) error {
	return s.around("joining "+c, func() error { return s.memoryStore.SetJoining(c) })
}

func (s *crashingStore) SetCluster(c string, founder bool) error {
	return s.around("cluster", func() error { return s.memoryStore.SetCluster(c, founder) })
}

func TestRefusedJoinEndsTheStart(t *testing.T) {
	asker := scriptedAsker{join: func(string, JoinRequest) (JoinAnswer, error) {
		return JoinAnswer{Refused: "the cluster speaks version 3"}, nil
	}}
	f, _, store := formerOf(t, identityOf("a"), 0, asker, clusteredNode("b", clusterX))
	_, err := f.Run(t.Context())
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "version 3") || store.id.ClusterID != "" {
		t.Errorf("error %v, on disk %+v", err, store.id)
	}
}

// A wiped node joins although the catalog still contains the old node of its name. The member that
// receives the request admits it once gossip has declared the old node dead.
func TestWipedNodeJoinsOnceTheOldOneIsFoundDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const old = "a.99999999"
		seen := newFormView() // the view of the member
		living := clusteredNode("a", clusterX)
		living.Key = old
		seen.show(living)
		view := &fakeCatalog{nodes: map[string]catalog.Node{old: {Key: old, Name: "a", State: catalog.NodeActive}}}
		admission := NewAdmission(clusterX, "", view, seen)
		time.Sleep(unseenFor)
		asked := 0
		asker := scriptedAsker{join: func(_ string, r JoinRequest) (JoinAnswer, error) {
			if asked++; asked == 5 {
				seen.show(dead(living))
			}
			return admission.HandleJoin(t.Context(), r)
		}}
		f, _, store := formerOf(t, identityOf("a"), 0, asker, clusteredNode("b", clusterX))
		f.cfg.Node.Zone = "z1"
		if _, err := f.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if asked != 5 || store.id.ClusterID != clusterX || len(view.entries) != 1 || view.entries[0].Replaces != old {
			t.Errorf("asked %d times, on disk %+v, the catalog was asked %+v", asked, store.id, view.entries)
		}
	})
}

// fakeCatalog is a catalog that stores every entry that it is given.
type fakeCatalog struct {
	nodes   map[string]catalog.Node
	entries []catalog.PutNodeEntry
	refused string
	err     error
}

func (c *fakeCatalog) Nodes() map[string]catalog.Node { return c.nodes }

func (c *fakeCatalog) PutNode(_ context.Context, e catalog.PutNodeEntry) (string, error) {
	c.entries = append(c.entries, e)
	return c.refused, c.err
}

func TestAdmission(t *testing.T) {
	lost := errors.New("lost")
	nodes := map[string]catalog.Node{
		"a.00000000": {Key: "a.00000000", Name: "a", State: catalog.NodeActive},
		"b.00000000": {Key: "b.00000000", Name: "b", State: catalog.NodeDraining},
		"c.00000000": {Key: "c.00000000", Name: "c", State: catalog.NodeLeaving},
	}
	node := func(key string) JoinRequest {
		return JoinRequest{ClusterID: clusterX, Node: catalog.Node{Key: key, Name: NodeOfKey(key), Zone: "z1"}}
	}
	for name, tc := range map[string]struct {
		ask      JoinRequest
		name     string // of the cluster
		seen     []Member
		after    time.Duration
		refused  string // the catalog's reason for a refusal; "" for none
		err      error  // the error of the catalog
		replaces string
		asked    bool // whether Admission sends the entry to the catalog
		want     string
		wantErr  error
	}{
		"a new node":                  {ask: node("d.00000000"), asked: true},
		"one that is there":           {ask: node("a.00000000"), asked: true},
		"the catalog refuses":         {ask: node("d.00000000"), asked: true, refused: "full", want: "full"},
		"the catalog does not answer": {ask: node("d.00000000"), asked: true, err: lost, wantErr: lost},
		"an unnamed cluster's":        {ask: JoinRequest{ClusterID: clusterX, Node: node("d.00000000").Node}, name: "prod", want: "--cluster-name prod"},
		"a named cluster's":           {ask: JoinRequest{ClusterID: clusterX, ClusterName: "test", Node: node("d.00000000").Node}, want: "--cluster-name test"},
		"one of the name":             {ask: JoinRequest{ClusterID: clusterX, ClusterName: "prod", Node: node("d.00000000").Node}, name: "prod", asked: true},
		"another cluster's":           {ask: JoinRequest{ClusterID: clusterY, Node: node("d.00000000").Node}, want: "this is a node of cluster " + clusterX},
		"no key":                      {ask: JoinRequest{ClusterID: clusterX, Node: catalog.Node{Key: "d", Name: "d"}}, want: "no node's key"},
		"another's key":               {ask: JoinRequest{ClusterID: clusterX, Node: catalog.Node{Key: "d.00000000", Name: "a"}}, want: "no node's key"},
		"no zone":                     {ask: JoinRequest{ClusterID: clusterX, Node: catalog.Node{Key: "d.00000000", Name: "d", Zone: "a b"}}, want: "no zone"},
		"a living node's name":        {ask: node("a.99999999"), seen: []Member{clusteredNode("a", clusterX)}, wantErr: errNotSure},
		"a dead node's name":          {ask: node("a.99999999"), seen: []Member{dead(clusteredNode("a", clusterX))}, asked: true, replaces: "a.00000000"},
		"a dead draining one's":       {ask: node("b.99999999"), seen: []Member{dead(clusteredNode("b", clusterX))}, asked: true, replaces: "b.00000000"},
		"a leaving one's":             {ask: node("c.99999999"), seen: []Member{clusteredNode("c", clusterX)}, asked: true},
		"one unheard of, early":       {ask: node("a.99999999"), wantErr: errNotSure},
		"one unheard of for long":     {ask: node("a.99999999"), after: unseenFor, asked: true, replaces: "a.00000000"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				known, view := &fakeCatalog{nodes: nodes, refused: tc.refused, err: tc.err}, newFormView()
				for _, m := range tc.seen {
					view.show(m)
				}
				a := NewAdmission(clusterX, tc.name, known, view)
				time.Sleep(tc.after)
				answer, err := a.HandleJoin(t.Context(), tc.ask)
				if !errors.Is(err, tc.wantErr) || tc.wantErr == nil && err != nil {
					t.Fatalf("error %v, want %v", err, tc.wantErr)
				}
				if !strings.Contains(answer.Refused, tc.want) || answer.Admitted != (tc.want == "" && err == nil) {
					t.Errorf("%+v, want refused by %q", answer, tc.want)
				}
				var want []catalog.PutNodeEntry
				if tc.asked {
					want = []catalog.PutNodeEntry{{Node: tc.ask.Node, Replaces: tc.replaces}}
				}
				if !slices.Equal(known.entries, want) {
					t.Errorf("the catalog was asked %+v, want %+v", known.entries, want)
				}
			})
		})
	}
}
