package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// controlled is a node that leads a catalog and accepts any command.
type controlled struct {
	catalog *catalog.View
	changed []*catalog.Command
}

func (c *controlled) LeadsCatalog() bool                                           { return true }
func (c *controlled) Catalog() *catalog.View                                       { return c.catalog }
func (c *controlled) LeaderViews(context.Context) map[uint32]leadership.LeaderView { return nil }

func (c *controlled) Change(_ context.Context, command *catalog.Command) (*catalog.Result, error) {
	c.changed = append(c.changed, command)
	return &catalog.Result{}, nil
}

func (c *controlled) Transfer(context.Context, uint32, string, string) error { return nil }

// The controller logs a warning for a node that it gives up, and counts the node. When an operator
// removes a node, the controller does neither.
func TestControllerWarnsOfANodeThatItGivesUp(t *testing.T) {
	var log bytes.Buffer
	known := catalog.New().View()
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		known.Nodes[name] = catalog.Node{Key: name, Name: name, State: catalog.NodeActive, VersionMax: 1}
	}
	node := &controlled{catalog: known}
	settings := PlanSettings{Replicas: 3, ReplaceAfter: time.Minute, MovesMax: 2}
	c := &Controller{node: node, view: deadMember{"n4"}, settings: settings, logger: slog.New(slog.NewTextHandler(&log, nil))}
	c.mu.unheard = map[string]time.Time{}
	c.round(t.Context())

	if len(node.changed) == 0 || node.changed[0].SetNodeState == nil || node.changed[0].SetNodeState.Key != "n4" {
		t.Fatalf("the dead node is to leave: %+v", node.changed)
	}
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "node=n4") || c.Lost() != 1 {
		t.Errorf("%d lost, log:\n%s", c.Lost(), got)
	}
	leaving := known.Nodes["n4"]
	leaving.State = catalog.NodeLeaving
	known.Nodes["n4"] = leaving
	c.round(t.Context())
	if got := log.String(); strings.Count(got, "level=WARN") != 1 || c.Lost() != 1 {
		t.Errorf("it is given up once: %d lost, log:\n%s", c.Lost(), got)
	}
}

// deadMember fakes gossip with four nodes. The node dead has been dead for an hour.
type deadMember struct{ dead string }

func (d deadMember) Members() []Member {
	var all []Member
	for _, key := range []string{"n1", "n2", "n3", "n4"} {
		all = append(all, Member{Key: key, Alive: key != d.dead, Since: time.Now().Add(-time.Hour)})
	}
	return all
}

func (d deadMember) Changed() <-chan struct{} { return nil }

func (d deadMember) Seeds([]string) {}
