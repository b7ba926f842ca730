package sources

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// sourceCluster has the shards and the catalog of a cluster, as state machines without Raft, and a
// queue. Two nodes read the queue, each with a Sink and a catalog that lags. The network may lose a
// section, lose its answer, or deliver it at any later time.
//
// A life of a source begins when the source is created, at each seek, and when its messages get
// another meaning. Each life has an ordinal. The test's network writes the deltas of a life's
// sections to the column with the number of the ordinal. So each row shows how often each life has
// applied each message.
type sourceCluster struct {
	t        rapid.TB
	faults   *rapid.T // draws what happens to each section; nil if all sections arrive
	catalog  *catalog.Catalog
	views    []*catalog.View
	shards   map[uint32]raftfsm.Machine
	queue    []queued
	late     []func()
	ordinals map[life]int
	since    map[life]uint32         // the first epoch of each life
	starts   map[int]sink.Position   // where lives start
	ends     map[int]sink.Position   // end positions of the lives that a change of meaning ended
	meaning  *catalog.PutSourceEntry // the change of meaning that was sent but not applied, or nil
	meant    int                     // the life that ends with the change in meaning
	fenced   map[uint64]uint32       // by source, the epoch of its last seek
	seq      uint64                  // sequence number of restores
	backups  map[uint32][]byte
	restores map[uint32]int // state of a group's restore: 1 if the shard is closed, 2 if its rows are restored too
	letters  map[letter]bool
	down     map[uint32]bool // groups without a leader
	unborn   map[uint32]bool // groups that have not adopted their part
	fault    growthFault
	names    *apitest.NodeNames // by the first group of the keyspace; nil if ids are numbers
}

// queued is a message. It has two ops: one on its own row, and one on a row that many messages
// share.
type queued struct {
	keyspace string
	made     uint32 // the first group of the keyspace when the message was sent; 0 if there was no such keyspace
}

type life struct {
	source uint64
	epoch  uint32
}

type letter struct{ message, ordinal int }

const messageID = 100 // id of the row of the first message

func (c *sourceCluster) command(command *catalog.Command) *catalog.Result {
	entry, err := catalog.AppendEntry(nil, command)
	if err != nil {
		c.t.Fatal(err)
	}
	r := c.catalog.Apply(rafttest.Next(c.catalog, entry)).(*catalog.Result)
	view := c.catalog.View()
	c.views = append(c.views, view)
	for _, k := range view.Keyspaces {
		for _, g := range k.Groups {
			if kind, _ := codec.KindOf(k.Kind); c.shards[g] == nil {
				c.shards[g] = kinds.All.New(kind, raftfsm.Places{})
			}
		}
	}
	for _, s := range view.Sources {
		if p, begun := s.Partitions[0]; begun {
			c.since[life{s.Number, p.Epoch}] = p.Since()
			c.starts[c.ordinal(s.Number, p.Epoch)] = p.Start
		}
	}
	return r
}

func (c *sourceCluster) create(name, kind string, shards int) {
	columns := make([]string, engine.ColumnsMax)
	for i := range columns {
		columns[i] = fmt.Sprintf("c%d", i)
	}
	replicas := make([][]string, shards)
	for i := range replicas {
		replicas[i] = []string{"a.1"}
	}
	if r := c.command(&catalog.Command{Create: &catalog.CreateEntry{
		Keyspace: catalog.Keyspace{Name: name, Kind: kind, Columns: columns, Divisor: shards}, Replicas: replicas,
	}}); r.Refused != "" {
		c.t.Fatal(r.Refused)
	}
	c.reverse(name)
	k := c.catalog.View().Keyspaces[name]
	for s, g := range k.Groups {
		c.shards[g].SetRoute(k.FirstRoute(s))
	}
}

// reverse reverses the order of a new keyspace's groups, because the groups of a keyspace may have
// any order.
func (c *sourceCluster) reverse(name string) {
	v := *c.catalog.View()
	k := v.Keyspaces[name]
	k.Groups = slices.Clone(k.Groups)
	slices.Reverse(k.Groups)
	v.Keyspaces = maps.Clone(v.Keyspaces)
	v.Keyspaces[name] = k
	body, err := json.Marshal(&v)
	if err != nil {
		c.t.Fatal(err)
	}
	stream := rafttest.StreamOf(codec.KindCatalog, v.Applied, []rafttest.Part{{Kind: codec.StreamCatalog, Payload: body}}, uint64(len(v.Keyspaces)), v.Digest())
	if err := rafttest.Restore(c.catalog, stream); err != nil {
		c.t.Fatal(err)
	}
	c.views[len(c.views)-1] = c.catalog.View()
}

const modelSource = "likes"

func (c *sourceCluster) source() catalog.Source { return c.catalog.View().Sources[modelSource] }

func (c *sourceCluster) ordinal(source uint64, epoch uint32) int {
	key := life{source, epoch}
	if since := c.since[key]; since != 0 {
		key.epoch = since
	}
	if _, known := c.ordinals[key]; !known {
		c.ordinals[key] = len(c.ordinals)
	}
	return c.ordinals[key]
}

// sourceNode is a node that reads the queue. It is a World.
type sourceNode struct {
	c      *sourceCluster
	seen   int // index of the node's catalog in the cluster's views
	sink   *Sink
	source uint64
	begun  bool // whether it has called Start
	reads  bool // whether it has called Positions
	from   sink.Position
	began  bool // the node has read a message since it called Positions
	high   sink.Position
	late   []sink.ShardPosition
	// meanwhile runs once, after the next Write has delivered its sections.
	meanwhile func()
	before    func()            // runs once, before the next Write takes its layout
	noted     map[uint32]uint32 // by parent, the modulus that a refusal has named
}

// modelMark returns the mark of the message below a position.
func modelMark(at sink.Position) sink.Mark {
	return sink.Mark{Position: sink.Position{Lo: at.Lo - 1}, Sum: at.Lo}
}

// mark is sink.Batch.Mark.
func (n *sourceNode) mark(below sink.Position) sink.Mark {
	if !n.began || below.Lo == 0 {
		return sink.Mark{}
	}
	return modelMark(below)
}

func (n *sourceNode) Catalog() *catalog.View { return n.c.views[n.seen] }

func (n *sourceNode) CatchUp(context.Context) error {
	n.seen = len(n.c.views) - 1
	return nil
}

func (n *sourceNode) Keyspaces() (all []*shard.Keyspace) {
	for _, k := range n.Catalog().KeyspacesByName() {
		all = append(all, &shard.Keyspace{Name: k.Name, Kind: k.Kind, Columns: k.Columns, Shards: len(k.Groups), Divisor: k.Divisor, FirstGroup: k.FirstGroup(), Groups: k.Groups})
		if n.c.names != nil {
			all[len(all)-1].Names = catalog.NamesOf(k.Name)
		}
	}
	return all
}

// Keyspace returns a keyspace of names. In the model it has the group of the keyspace of its rows.
func (n *sourceNode) Keyspace(name string) *shard.Keyspace {
	k, there := n.Catalog().Keyspaces[strings.TrimSuffix(name, catalog.NamesOf(""))]
	if !there {
		return nil
	}
	return &shard.Keyspace{Name: name, Kind: kinds.Names, FirstGroup: k.FirstGroup()}
}

// Read implements a read of names.
func (n *sourceNode) Read(ks *shard.Keyspace, q raftfsm.Query, _ []uint64, _ *shard.ReadOptions) error {
	if n.c.catalog.View().Dropped(ks.FirstGroup) {
		return errs.ErrUnknownKeyspace
	}
	n.c.names.Answer(fmt.Sprint(ks.FirstGroup), q)
	return nil
}

// writeNames writes names. The write, or its answer, may be lost.
func (c *sourceCluster) writeNames(ks *shard.Keyspace, w *shard.Write) error {
	fate := 0
	if c.faults != nil {
		fate = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2}).Draw(c.faults, "fate of names")
	}
	switch {
	case c.catalog.View().Dropped(ks.FirstGroup):
		return errs.ErrUnknownKeyspace
	case fate == 1:
		return errs.ErrNoLeader
	}
	c.names.Write(fmt.Sprint(ks.FirstGroup), w)
	if fate == 2 {
		return errs.ErrOutcomeUnknown
	}
	return nil
}

func (n *sourceNode) Change(_ context.Context, command *catalog.Command) (*catalog.Result, error) {
	r := n.c.command(command)
	return r, n.CatchUp(context.Background())
}

var errModelLost = errors.New("the answer is lost")

func (n *sourceNode) Write(ks *shard.Keyspace, w *shard.Write) error {
	if ks.Kind == kinds.Names {
		return n.c.writeNames(ks, w)
	}
	n.c.growMeanwhile(n)
	if err := n.fits(w); err != nil {
		return err
	}
	w.Answers = make([]shard.Answer, len(w.Sections))
	all, _ := w.Ops.(counters.Ops)
	slot := 0
	for space, k := range w.Spaces {
		route, groups := n.Layout(k)
		for number, group := range groups {
			id := w.Sections[slot]
			var ops []engine.Op
			for i := range all {
				s, key := route.KeyOf(all[i].ID)
				if int(w.In[i]) != space || s != number {
					continue
				}
				if id == nil && n.c.fault == staleRoute {
					id = &w.ID
				}
				column := uint8(n.c.ordinal(id.SourceSection().Source, id.SourceSection().Epoch))
				ops = append(ops, engine.Op{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: all[i].Cells[0].Value}}})
			}
			if id != nil && route.Exists(number) {
				w.Answers[slot] = n.deliver(k, group, route.Of(number), *id.SourceSection(), ops)
			}
			slot++
		}
	}
	if run := n.meanwhile; run != nil {
		n.meanwhile = nil
		run()
	}
	return nil
}

// deliver applies a section to a shard. It may lose the section or its answer, or delay or repeat
// it.
func (c *sourceCluster) deliver(group uint32, of codec.Route, section dedup.SourceSection, ops []engine.Op) shard.Answer {
	if c.down[group] || c.unborn[group] {
		return shard.Answer{Err: errModelLost}
	}
	fate := 0
	if c.faults != nil {
		fate = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2, 3, 4}).Draw(c.faults, "fate")
	}
	arrives := func() shard.Answer {
		a := c.applyAs(group, of, dedup.BySource(section), ops)
		if fenced := c.fenced[section.Source]; a.Err == nil && a.Outcome == dedup.Applied && len(ops) > 0 && section.Epoch < fenced {
			c.t.Fatalf("group %d applied a section of epoch %d after the seek that began epoch %d", group, section.Epoch, fenced)
		}
		return a
	}
	switch fate {
	case 1: // never arrives
		return shard.Answer{Err: errModelLost}
	case 2: // arrives, but its answer is lost
		arrives()
		return shard.Answer{Err: errModelLost}
	case 3: // arrives later
		c.late = append(c.late, func() { arrives() })
		return shard.Answer{Err: errModelLost}
	case 4: // arrives, and a copy of it arrives later
		c.late = append(c.late, func() { arrives() })
	}
	return arrives()
}

func (c *sourceCluster) apply(group uint32, id dedup.RequestID, ops []engine.Op) shard.Answer {
	return c.applyAs(group, c.shards[group].Route(), id, ops)
}

// applyAs is apply for a section with the given route.
func (c *sourceCluster) applyAs(group uint32, of codec.Route, id dedup.RequestID, ops []engine.Op) shard.Answer {
	m := c.shards[group]
	if c.catalog.View().Dropped(group) {
		return shard.Answer{Err: errs.ErrUnknownKeyspace}
	}
	kind := codec.KindCounters
	if _, is := m.(*unread.Machine); is {
		kind = codec.KindUnread
	}
	entry := dedup.AppendClock(codec.BeginEntry(nil, kind, 0), time.UnixMilli(1), dedup.Limits{KeyHorizon: time.Hour, KeysMax: 10, ProducerIdle: time.Hour, ProducersMax: 10})
	var w raftfsm.RequestWriter
	w.Reset(nil, of, &id)
	for i := range ops {
		counters.Ops(ops).AppendTo(&w, ops[i].ID, i)
	}
	r := m.Apply(rafttest.Next(m, codec.AppendChecksum(append(entry, w.Section()...)))).(*raftfsm.Result)
	at, _ := r.Position(0)
	return shard.Answer{Outcome: r.Outcome(0), At: at}
}

// step makes a node do the next step of a reader. It returns true when the node has read the whole
// queue.
func (n *sourceNode) step(batch int) (done bool) {
	c, ctx := n.c, context.Background()
	source, there := n.Catalog().Sources[modelSource]
	if !there {
		n.begun = false
		return false
	}
	if n.source != source.Number {
		n.source, n.begun, n.reads = source.Number, false, false
	}
	if !n.begun {
		start, err := n.sink.Start(ctx, n.source, 0, sink.Start{Identity: "queue"})
		n.from, n.begun, n.reads = start.Position, err == nil, false
		return false
	}
	if !n.reads {
		all, err := n.sink.Positions(ctx, n.source, 0)
		n.begun, n.reads, n.began = err == nil, err == nil, false
		for _, p := range all { // each shard must have no mark, or the mark of the message below its position
			if p.Mark.Exists() && p.Mark != modelMark(p.Position) {
				c.t.Fatalf("a shard at %v has mark %v", p.Position, p.Mark)
			}
		}
		n.from, n.high = sink.Span(all, n.from)
		n.late = lateOf(all)
		return false
	}
	next := sink.Position{Lo: min(uint64(len(c.queue)), n.from.Lo+uint64(batch))}
	b := &sink.Batch{Source: n.source, From: n.from, Next: next, Mark: n.mark}
	for m := n.from.Lo; m < next.Lo; m++ {
		q := c.queue[m]
		for _, id := range []uint64{messageID + m, m % 4} {
			op := sink.Op{Position: sink.Position{Lo: m}, Keyspace: q.keyspace, ID: id, Cells: []sink.Cell{{Column: "c0", Value: 1}}}
			if c.names != nil && m%2 == 0 { // other ids are digits, which are texts too
				op.ID, op.Texts = 0, &sink.Texts{ID: modelText(id), IDAt: "id"}
			}
			b.Ops = append(b.Ops, op)
		}
	}
	rejected, err := n.sink.Check(ctx, b)
	if err != nil {
		n.begun = n.begun && !errors.Is(err, sink.ErrMoved)
		return false
	}
	dead := map[sink.Position]bool{}
	for _, r := range rejected {
		at := b.Ops[r.Op].Position
		dead[at] = true
		c.letters[letter{int(at.Lo), c.ordinal(n.source, n.Catalog().Sources[modelSource].Partitions[0].Epoch)}] = true
	}
	b.Ops = slices.DeleteFunc(b.Ops, func(op sink.Op) bool { return dead[op.Position] })
	n.began = n.began || n.from.Less(next)
	if n.high.Less(next) {
		n.high = next
	}
	_, err = n.sink.Apply(ctx, b)
	switch {
	case err == nil:
		n.from = next
		return next.Lo == uint64(len(c.queue)) && len(b.Ops) == 0
	case errors.Is(err, sink.ErrStopped):
		_, _ = n.sink.Apply(ctx, &sink.Batch{Source: n.source, From: n.from, Next: n.from, Mark: n.mark})
		n.begun = false
	case errors.Is(err, sink.ErrMoved):
		n.begun = false
	}
	return false
}

// settle makes a reading node move all shards to one position and read their positions, as a
// session does from time to time. The node continues if all shards that answer are at the node's
// position, and no shard that was late answers.
func (n *sourceNode) settle() {
	if !n.begun || !n.reads {
		return
	}
	ctx, were := context.Background(), n.late
	_, err := n.sink.Apply(ctx, &sink.Batch{Source: n.source, From: n.from, Next: n.from, Mark: n.mark})
	var all []sink.ShardPosition
	if err == nil {
		all, err = n.sink.Positions(ctx, n.source, 0)
	}
	n.late = lateOf(all)
	low, high := sink.Span(all, n.from)
	answers := slices.ContainsFunc(were, func(p sink.ShardPosition) bool { return !slices.Contains(n.late, p) })
	n.begun = err == nil && low == n.from && !n.high.Less(high) && !answers
}

func lateOf(all []sink.ShardPosition) []sink.ShardPosition {
	return slices.DeleteFunc(slices.Clone(all), func(p sink.ShardPosition) bool { return !p.Late })
}

// restoreBegins closes a shard, restoreRows sets its rows to those of its backup, and
// restoreEnds opens it.
func (c *sourceCluster) restoreBegins(group uint32) {
	c.seq++
	c.apply(group, dedup.ByRestorePositions(c.seq, dedup.RestoredPositions{Closed: true}), nil)
	c.restores[group] = 1
}

// contents returns the rows and positions of a snapshot of a shard.
func (c *sourceCluster) contents(group uint32, snapshot []byte) (all map[uint64][]int64, positions []dedup.PositionRecord) {
	m := c.shards[group]
	kind := codec.KindCounters
	if _, is := m.(*unread.Machine); is {
		kind = codec.KindUnread
	}
	all = map[uint64][]int64{}
	_, err := kinds.All.VisitSnapshot(bytes.NewReader(snapshot), kind, m.Route(), raftfsm.SnapshotVisitor{
		Rows: func(_ raftfsm.Table, p *engine.Page) error {
			for i, key := range p.IDs {
				all[key] = slices.Clone(p.Row(i))
			}
			return nil
		},
		Positions: func(all []dedup.PositionRecord, _ uint64) error { positions = all; return nil },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return all, positions
}

func (c *sourceCluster) restoreRows(group uint32) {
	var ops []engine.Op
	was, _ := c.contents(group, rafttest.Persisted(c.t, c.shards[group]))
	for key := range was {
		ops = append(ops, engine.Op{ID: key, Kind: engine.OpDelete})
	}
	now, _ := c.contents(group, c.backups[group])
	for key, row := range now {
		var cells []engine.Cell
		for column, v := range row {
			if v != 0 {
				cells = append(cells, engine.Cell{Column: uint8(column), Value: v})
			}
		}
		ops = append(ops, engine.Op{ID: key, Kind: engine.OpSet, Cells: cells})
	}
	c.apply(group, dedup.RequestID{}, ops)
	c.restores[group] = 2
}

func (c *sourceCluster) restoreEnds(group uint32) {
	_, positions := c.contents(group, c.backups[group])
	c.seq++
	c.apply(group, dedup.ByRestorePositions(c.seq, dedup.RestoredPositions{All: admin.PositionsAfter(c.catalog.View(), positions)}), nil)
	delete(c.restores, group)
}

// modelText is the text of an id: of even messages not digits.
func modelText(id uint64) string {
	if id%2 == 0 {
		return fmt.Sprintf("message %d", id)
	}
	return fmt.Sprint(id)
}

// count returns how often a life has applied the messages that a row counts.
func (c *sourceCluster) count(k catalog.Keyspace, id uint64, ordinal int) int64 {
	if c.names != nil {
		number := make([]uint64, 1)
		err := names.New(c.node()).Find(catalog.NamesOf(k.Name), []string{modelText(id)}, number, &shard.ReadOptions{})
		if id = number[0]; err != nil || id == 0 {
			return 0
		}
	}
	route, groups := c.routeOf(k)
	s, key := route.KeyOf(id)
	var row [engine.ColumnsMax]int64
	switch m := c.shards[groups[s]].(type) {
	case *counters.Machine:
		m.Table().Get(key, row[:])
	case *unread.Machine:
		m.Table().Get(key, row[:])
	}
	return row[ordinal]
}

func (c *sourceCluster) pause(paused bool) {
	c.command(&catalog.Command{PauseSource: &catalog.PauseSourceEntry{Name: modelSource, Version: c.source().Version, Paused: paused}})
}

// fence prepares a seek through a node. It returns nil if a shard does not answer.
func (c *sourceCluster) fence(n *sourceNode, to uint64) *catalog.SeekSourceEntry {
	_ = n.CatchUp(context.Background())
	s := c.source()
	if _, begun := s.Partitions[0]; begun && s.Paused && n.sink.Fence(context.Background(), s, 0) != nil {
		return nil
	}
	return &catalog.SeekSourceEntry{Name: modelSource, Version: s.Version, Positions: map[uint32]sink.Position{0: {Lo: to}}}
}

// seek sends the seek that fence prepared.
func (c *sourceCluster) seek(fenced *catalog.SeekSourceEntry) {
	if fenced == nil {
		return
	}
	if r := c.command(&catalog.Command{SeekSource: fenced}); r.Refused == "" && !r.Missing && !r.Exists {
		c.fenced[r.Source.Number] = r.Source.Partitions[0].Epoch
	}
}

// settle prepares a change of meaning through a node, and stores it in c.meaning.
func (c *sourceCluster) settle(n *sourceNode) {
	_ = n.CatchUp(context.Background())
	s := c.source()
	p := s.Partitions[0]
	at, err := n.sink.Settle(context.Background(), s, 0)
	if err != nil || p.Epoch == 0 {
		return
	}
	c.meaning = &catalog.PutSourceEntry{
		Name: modelSource, Config: json.RawMessage("{}"), Version: s.Version, Cluster: 1, NewMeaning: true, Positions: map[uint32]sink.Position{0: at},
	}
	c.meant = c.ordinal(s.Number, p.Epoch)
}

// mean sends the change of meaning that settle has prepared. It has no effect if the source was
// changed since.
func (c *sourceCluster) mean() {
	if c.meaning == nil {
		return
	}
	if r := c.command(&catalog.Command{PutSource: c.meaning}); r.Refused == "" && !r.Missing && !r.Exists {
		c.ends[c.meant] = c.meaning.Positions[0]
	}
	c.meaning = nil
}

// newSourceCluster returns a cluster with two keyspaces and a source.
func newSourceCluster(t rapid.TB) *sourceCluster {
	c := &sourceCluster{
		t: t, catalog: catalog.New(), shards: map[uint32]raftfsm.Machine{}, ordinals: map[life]int{}, since: map[life]uint32{}, starts: map[int]sink.Position{}, ends: map[int]sink.Position{},
		backups: map[uint32][]byte{}, restores: map[uint32]int{}, letters: map[letter]bool{}, fenced: map[uint64]uint32{}, down: map[uint32]bool{}, unborn: map[uint32]bool{},
	}
	c.command(&catalog.Command{PutNode: &catalog.PutNodeEntry{Node: catalog.Node{
		Key: "a.1", Name: "a", Zone: "z", HTTPAddr: "a:1", ClusterAddr: "a:2", GossipAddr: "a:3", Version: "1", VersionMax: catalog.ClusterVersionMax,
	}}})
	c.command(&catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: catalog.ClusterVersionMax}})
	c.create("posts", kinds.Counters, 2)
	c.create(kinds.KeyspaceUnread, kinds.Unread, 1)
	c.put()
	return c
}

func (c *sourceCluster) put() {
	c.command(&catalog.Command{PutSource: &catalog.PutSourceEntry{Name: modelSource, Config: json.RawMessage("{}"), Cluster: 1}})
}

// node returns a node that knows the current catalog.
func (c *sourceCluster) node() *sourceNode {
	n := &sourceNode{c: c, seen: len(c.views) - 1, noted: map[uint32]uint32{}}
	n.sink = NewSink(n)
	return n
}

// If a reader's node does not know a new keyspace yet, the reader still writes no dead letters for
// messages of that keyspace. The shards of the keyspace get checkpoints at the beginning of the
// batch.
func TestReaderWithAnOldCatalog(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	n := c.node()
	c.queue = []queued{{keyspace: "posts"}, {keyspace: "extra"}}
	for range 3 { // Start, Positions, a batch
		n.step(1)
	}
	c.create("extra", kinds.Counters, 2)
	n.step(1)
	if len(c.letters) > 0 || n.from != (sink.Position{Lo: 2}) {
		t.Fatalf("at %v with dead letters %v", n.from, c.letters)
	}
	for m, q := range c.queue {
		if got := c.count(c.catalog.View().Keyspaces[q.keyspace], messageID+uint64(m), 0); got != 1 {
			t.Errorf("message %d is counted %d times", m, got)
		}
	}
}

// unaware is a node that has just joined: its catalog has sources, but it has not opened the
// replicas of keyspaces yet.
type unaware struct{ *sourceNode }

func (unaware) Keyspaces() []*shard.Keyspace { return nil }

// A node that reads a source before it knows the keyspaces tries again later.
func TestPositionsBeforeKeyspaces(t *testing.T) {
	t.Parallel()
	n := newSourceCluster(t).node()
	number := n.c.source().Number
	early := NewSink(unaware{n})
	if _, err := early.Positions(t.Context(), number, 0); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("without keyspaces: %v", err)
	}
	early.Forget(t.Context(), number)
}

// A reader that does not know of a seek sets no shard's checkpoint to the old start of the source.
func TestSeekBetweenStartAndPositions(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.queue = slices.Repeat([]queued{{keyspace: "posts"}}, 3)
	late, ctx := c.node(), context.Background()
	late.step(3)
	if !late.begun || late.reads {
		t.Fatal("it has not called Start alone")
	}
	c.pause(true)
	c.seek(c.fence(c.node(), 3))
	must.Do(t, late.CatchUp(ctx))
	late.step(3)
	if _, err := late.sink.Apply(ctx, &sink.Batch{Source: late.source, From: late.from, Next: late.from}); !errors.Is(err, sink.ErrMoved) {
		t.Errorf("a batch from %v after a seek to 3: %v", late.from, err)
	}
	c.pause(false)
	late.begun = false
	c.readAll(late)
	for m := range c.queue {
		if got := c.count(c.catalog.View().Keyspaces["posts"], messageID+uint64(m), 0); got != 0 {
			t.Errorf("message %d below the position sought is counted %d times", m, got)
		}
	}
}

// A session from before a seek counts no message below the new position, not even for a new
// keyspace. That holds even if its node has settled the source since.
func TestSessionFromBeforeASeek(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.queue = slices.Repeat([]queued{{keyspace: "extra"}}, 3)
	n := c.node()
	for range 2 { // Start and Positions
		n.step(0)
	}
	c.pause(true)
	c.seek(c.fence(n, 2))
	c.node().step(0) // records the identity of the queue
	must.Do(t, n.CatchUp(t.Context()))
	_, err := n.sink.Settle(t.Context(), c.source(), 0)
	must.Do(t, err)
	c.create("extra", kinds.Counters, 2)
	c.pause(false)
	c.readAll(n)
	for m := range c.queue {
		if got := c.count(c.catalog.View().Keyspaces["extra"], messageID+uint64(m), 1); got != int64(m/2) {
			t.Errorf("message %d is counted %d times", m, got)
		}
	}
}

// A reader from before a seek does not continue at a position that another reader has reached since
// the seek.
func TestReaderFromBeforeASeek(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.queue = slices.Repeat([]queued{{keyspace: "posts"}}, 8)
	late, other := c.node(), c.node()
	for range 3 {
		late.step(4)
	}
	c.pause(true)
	c.seek(c.fence(c.node(), 0))
	c.pause(false)
	c.readAll(other)
	b := &sink.Batch{Source: late.source, From: late.from, Next: sink.Position{Lo: 8}}
	if _, err := late.sink.Apply(context.Background(), b); late.from != (sink.Position{Lo: 4}) || !errors.Is(err, sink.ErrMoved) {
		t.Errorf("a batch from %v of an earlier epoch: %v", late.from, err)
	}
}

// readAll makes a node read to the end of the queue. It then reads the positions of the shards
// again, as an idle reader does.
func (c *sourceCluster) readAll(n *sourceNode) {
	for range 2 {
		_ = n.CatchUp(context.Background())
		for i := 0; !n.step(3); i++ {
			if i > 2*len(c.queue)+50 {
				c.t.Fatal("the reader does not reach the end of the queue")
			}
		}
		n.begun = false
	}
}

// If shards are restored while the queue is idle, the reader reads the messages again that these
// shards lack.
func TestRestoredWhileIdle(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.queue = slices.Repeat([]queued{{keyspace: "posts"}}, 8)
	n := c.node()
	for range 3 {
		n.step(1)
	}
	k := c.catalog.View().Keyspaces["posts"]
	for _, g := range k.Groups {
		c.backups[g] = rafttest.Persisted(t, c.shards[g])
	}
	c.readAll(n)
	for g := range c.backups {
		c.restoreBegins(g)
		c.restoreRows(g)
		c.restoreEnds(g)
	}
	c.readAll(n)
	for m := range c.queue {
		if got := c.count(k, messageID+uint64(m), 0); got != 1 {
			t.Errorf("message %d is counted %d times", m, got)
		}
	}
	all, err := n.sink.Positions(context.Background(), n.source, 0)
	must.Do(t, err)
	for _, p := range all {
		if p.Mark != modelMark(sink.Position{Lo: 8}) {
			t.Errorf("shard %d at %v has mark %v", p.Shard, p.Position, p.Mark)
		}
	}
}

// A shard without a leader delays only its own messages. Once it has a leader again, it counts its
// messages that the other shards have passed, each of them once.
func TestLeaderlessShard(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"when its reader began": false, "while it is read": true, "and none before": true} {
		t.Run(name, func(t *testing.T) {
			c := newSourceCluster(t)
			c.create("extra", kinds.Counters, 1)
			extra := c.catalog.View().Keyspaces["extra"]
			n := c.node()
			if name != "and none before" {
				c.queue = slices.Repeat([]queued{{keyspace: "posts"}, {keyspace: "extra"}}, 3)
				c.readAll(n)
			}
			lag := func(k string) uint64 { // number of messages that the keyspace lacks
				missing := uint64(0)
				for m, q := range c.queue {
					if q.keyspace == k && c.count(c.catalog.View().Keyspaces[k], messageID+uint64(m), 0) != 1 {
						missing++
					}
				}
				return missing
			}
			if known {
				for n.step(3); !n.reads; {
					n.step(3)
				}
			} else {
				n.begun, n.reads = false, false
			}
			c.down[extra.FirstGroup()] = true
			c.queue = append(c.queue, slices.Repeat([]queued{{keyspace: "posts"}}, 9)...)
			for range 20 {
				n.step(2)
			}
			if got := lag("posts"); got != 0 {
				t.Fatalf("%d messages for shards with a leader wait", got)
			}
			c.queue = append(c.queue, queued{keyspace: "extra"}, queued{keyspace: "posts"})
			for range 20 {
				n.step(1)
			}
			if got := lag("posts"); got != 1 || lag("extra") != 1 {
				t.Fatalf("behind a message for the shard, %d wait, and %d for it", got, lag("extra"))
			}
			if _, err := n.sink.Settle(context.Background(), c.source(), 0); err == nil {
				t.Error("a source settles whose shard does not answer")
			}
			c.down[extra.FirstGroup()] = false
			c.readAll(n)
			if lag("posts") != 0 || lag("extra") != 0 {
				t.Errorf("%d and %d messages wait", lag("posts"), lag("extra"))
			}
		})
	}
}

// While one node settles a paused source, a reader that does not know of the pause yet begins
// shards and counts messages. Settle must return the position that the shards then have, or an
// error.
func TestSettleBesideAReader(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	reader := c.node()
	for range 2 { // Start and Positions, after which no shard has begun
		reader.step(0)
	}
	c.queue = slices.Repeat([]queued{{keyspace: "posts"}}, 9)
	c.pause(true)
	settler := c.node()
	settler.meanwhile = func() { reader.step(9) }
	at, err := settler.sink.Settle(t.Context(), c.source(), 0)
	if c.count(c.catalog.View().Keyspaces["posts"], messageID, 0) != 1 {
		t.Fatal("the reader counted nothing")
	}
	all, posErr := settler.sink.ReadPositions(t.Context(), c.source().Number, 0)
	if posErr != nil {
		t.Fatal(posErr)
	}
	if low, high := sink.Span(all, sink.Position{}); err == nil && (low != at || high != at) {
		t.Errorf("settled at %v, the shards are from %v to %v", at, low, high)
	}
}

// If a shard loses its leader while it is behind, it later counts the messages that other shards
// have passed meanwhile.
func TestLeaderlessBehind(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.create("extra", kinds.Counters, 1)
	extra := c.catalog.View().Keyspaces["extra"]
	n := c.node()
	for range 3 { // Start, Positions, and a batch that begins all shards
		n.step(0)
	}
	c.queue = []queued{{keyspace: "posts"}, {keyspace: "posts"}, {keyspace: "posts"}, {keyspace: "posts"}, {keyspace: kinds.KeyspaceUnread}, {keyspace: "extra"}}
	c.down[extra.FirstGroup()] = true
	n.step(6) // all other shards have ops in this batch, and apply them
	n.begun = false
	c.queue = append(c.queue, queued{keyspace: "posts"})
	for range 9 {
		n.step(2)
	}
	if got := c.count(c.catalog.View().Keyspaces["posts"], messageID+6, 0); got != 1 {
		t.Errorf("what the shard has no part of is counted %d times", got)
	}
	if got, err := n.sink.Apply(context.Background(), &sink.Batch{Source: n.source, From: n.from, Next: n.from}); err != nil || got.Behind == "" {
		t.Errorf("%+v, %v: nobody says that the shard is behind", got, err)
	}
	c.down[extra.FirstGroup()] = false
	c.readAll(n)
	for m, q := range c.queue {
		if got := c.count(c.catalog.View().Keyspaces[q.keyspace], messageID+uint64(m), 0); got != 1 {
			t.Errorf("message %d is counted %d times", m, got)
		}
	}
}

// A shard that was late may continue only if it has the same mark as the others. If its mark
// differs, the queue may have lost messages that the shard has counted.
func TestLateShardWithAMark(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"of the others": nil, "of another message": sink.ErrMoved} {
		t.Run(name, func(t *testing.T) {
			c := newSourceCluster(t)
			c.create("extra", kinds.Counters, 1)
			extra := c.catalog.View().Keyspaces["extra"]
			c.queue = []queued{{keyspace: "posts"}, {keyspace: "extra"}}
			n, end := c.node(), sink.Position{Lo: 2}
			c.readAll(n)
			if want != nil {
				c.apply(extra.FirstGroup(), dedup.BySource(dedup.SourceSection{
					PositionKey: dedup.PositionKey{Source: n.source}, Mode: dedup.SectionAdvance, Epoch: 1, Prev: end, Next: end,
					Mark: sink.Mark{Position: sink.Position{Lo: 1}, Sum: 99},
				}), nil)
			}
			c.down[extra.FirstGroup()] = true
			_, err := n.sink.Positions(context.Background(), n.source, 0)
			must.Do(t, err)
			c.down[extra.FirstGroup()] = false
			_, err = n.sink.Apply(context.Background(), &sink.Batch{Source: n.source, From: end, Next: sink.Position{Lo: 3}, Ops: []sink.Op{
				{Position: end, Keyspace: "extra", ID: messageID + 2, Cells: []sink.Cell{{Column: "c0", Value: 1}}},
			}})
			if got := c.count(extra, messageID+2, 0); !errors.Is(err, want) || (got == 1) != (want == nil) {
				t.Errorf("its message is counted %d times, %v", got, err)
			}
		})
	}
}

// After a seek, a reader whose node does not know of it yet counts nothing before the queue's
// identity is recorded again. Otherwise no reader would notice if the queue was replaced.
func TestIdentityIsRecordedAfterASeek(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	c.queue = slices.Repeat([]queued{{keyspace: "posts"}}, 3)
	late := c.node()
	late.step(1) // Start, at 0
	late.begun = false
	c.pause(true)
	c.seek(c.fence(c.node(), 0))
	c.pause(false)
	late.step(1) // Start, which returns the identity from before the seek
	if !late.begun || c.source().Partitions[0].Identity != "" {
		t.Fatal("it has learned of the seek")
	}
	for i := 0; i < 20 && !late.step(1); i++ {
	}
	if got := c.source().Partitions[0].Identity; got != "queue" {
		t.Errorf("the queue is read, and its identity is %q", got)
	}
	for m := range c.queue {
		if got := c.count(c.catalog.View().Keyspaces["posts"], messageID+uint64(m), c.ordinal(c.source().Number, c.source().Partitions[0].Epoch)); got != 1 {
			t.Errorf("message %d is counted %d times", m, got)
		}
	}
}

// The second half of a Redis id may have the highest possible value. RecordRejected counts a
// refusal of such an entry too.
func TestRecordRejectedAtTheHighest(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	n := c.node()
	n.step(1) // Start
	highest := []sink.Refusal{{Position: sink.Position{Hi: 5, Lo: math.MaxUint64}}}
	for range 2 {
		if err := NewChanges(n.sink, nil).RecordRejected(context.Background(), n.source, 0, highest); err != nil {
			t.Fatal(err)
		}
	}
	if p := c.source().Partitions[0]; p.Rejected != 1 || p.RejectedTo != (sink.Position{Hi: 6}) {
		t.Errorf("it has %+v", p)
	}
}

func TestSourcesModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { runSourcesModel(t, newSourceCluster(t)) })
}

// TestSourcesModelOfTexts is TestSourcesModel with texts as ids.
func TestSourcesModelOfTexts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newSourceCluster(t)
		c.names = &apitest.NodeNames{}
		runSourcesModel(t, c)
	})
}

func runSourcesModel(t *rapid.T, c *sourceCluster) {
	c.faults = t
	for range rapid.IntRange(0, 15).Draw(t, "steps of growths before") {
		c.grow()
	}
	nodes := make([]*sourceNode, 2)
	restart := func(i int) {
		nodes[i] = c.node()
	}
	restart(0)
	restart(1)
	publish := func(n int) {
		for range n {
			q := queued{keyspace: rapid.SampledFrom([]string{"posts", "posts", kinds.KeyspaceUnread, "extra"}).Draw(t, "keyspace")}
			if k, there := c.catalog.View().Keyspaces[q.keyspace]; there {
				q.made = k.FirstGroup()
			}
			c.queue = append(c.queue, q)
		}
	}
	publish(5)
	group := func() uint32 {
		var all []uint32
		for g := range c.shards {
			if !c.catalog.View().Dropped(g) {
				all = append(all, g)
			}
		}
		slices.Sort(all)
		return rapid.SampledFrom(all).Draw(t, "group")
	}
	node := func() int { return rapid.IntRange(0, 1).Draw(t, "node") }
	read := func(*rapid.T) { nodes[node()].step(rapid.IntRange(0, 5).Draw(t, "batch")) }
	t.Repeat(map[string]func(*rapid.T){
		"read":       read,
		"read again": read,
		"read on":    read,
		"read more":  read,
		"settle it":  func(*rapid.T) { nodes[node()].settle() },
		"publish":    func(t *rapid.T) { publish(rapid.IntRange(1, 4).Draw(t, "messages")) },
		"crash":      func(*rapid.T) { restart(node()) },
		"learn":      func(*rapid.T) { _ = nodes[node()].CatchUp(context.Background()) },
		"late": func(*rapid.T) {
			if len(c.late) > 0 {
				i := rapid.IntRange(0, len(c.late)-1).Draw(t, "which")
				c.late[i]()
				c.late = slices.Delete(c.late, i, i+1)
			}
		},
		"keyspace": func(*rapid.T) {
			if k, there := c.catalog.View().Keyspaces["extra"]; there {
				if rapid.IntRange(0, 5).Draw(t, "rare") > 0 {
					return
				}
				c.command(&catalog.Command{Drop: &catalog.DropEntry{Keyspace: "extra", FirstGroup: k.FirstGroup()}})
			} else {
				c.create("extra", kinds.Counters, 2)
			}
		},
		"seek": func(*rapid.T) {
			if len(c.ordinals) > 40 || rapid.IntRange(0, 3).Draw(t, "rare") > 0 {
				return
			}
			c.pause(true)
			fenced := c.fence(nodes[node()], uint64(rapid.IntRange(0, len(c.queue)).Draw(t, "to")))
			if rapid.IntRange(0, 3).Draw(t, "changed meanwhile") == 0 {
				c.pause(false)
				reader := nodes[node()]
				for range 4 {
					_ = reader.CatchUp(context.Background())
					reader.step(2)
				}
				c.pause(true)
			}
			c.seek(fenced)
			if rapid.Bool().Draw(t, "all late") {
				for _, arrive := range c.late {
					arrive()
				}
				c.late = nil
			}
			if rapid.Bool().Draw(t, "resume") {
				c.pause(false)
			}
		},
		"pause":  func(*rapid.T) { c.pause(true) },
		"resume": func(*rapid.T) { c.pause(false) },
		"settle": func(*rapid.T) {
			if c.source().Paused && len(c.ordinals) <= 40 {
				settler, reader := nodes[node()], nodes[node()]
				if settler != reader {
					settler.meanwhile = func() { reader.step(2); reader.step(2) }
				}
				c.settle(settler)
				settler.meanwhile = nil
			}
		},
		"meaning": func(*rapid.T) { c.mean() },
		"delete": func(*rapid.T) {
			if len(c.ordinals) > 40 || rapid.IntRange(0, 3).Draw(t, "rare") > 0 {
				return
			}
			of := c.source()
			c.command(&catalog.Command{DeleteSource: &catalog.DeleteSourceEntry{Name: modelSource, Version: of.Version}})
			nodes[node()].sink.Forget(context.Background(), of.Number)
			c.put()
		},
		"grow":      func(*rapid.T) { c.grow() },
		"grow on":   func(*rapid.T) { c.grow() },
		"grow more": func(*rapid.T) { c.grow() },
		"note":      func(*rapid.T) { nodes[node()].note() },
		"forget": func(*rapid.T) {
			g := group()
			for _, source := range c.shards[g].Sources() {
				if c.catalog.View().SourceDeleted(1, source) {
					c.apply(g, dedup.BySource(dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget}), nil)
				}
			}
		},
		"move": func(*rapid.T) { // moves a replica to another node, by a snapshot
			g := group()
			if c.unborn[g] {
				return
			}
			kind := codec.KindCounters
			if _, is := c.shards[g].(*unread.Machine); is {
				kind = codec.KindUnread
			}
			m := kinds.All.New(kind, raftfsm.Places{})
			m.SetRoute(c.shards[g].Route())
			if err := rafttest.Restore(m, rafttest.Persisted(t, c.shards[g])); err != nil {
				t.Fatal(err)
			}
			c.shards[g] = m
		},
		"leaderless": func(*rapid.T) {
			g := group()
			c.down[g] = !c.down[g]
		},
		"backup": func(*rapid.T) {
			if g := group(); c.restores[g] == 0 && !c.unborn[g] {
				c.backups[g] = rafttest.Persisted(t, c.shards[g])
			}
		},
		"restore": func(*rapid.T) {
			g := group()
			switch _, backed := c.backups[g]; {
			case c.restores[g] == 1:
				c.restoreRows(g)
			case c.restores[g] == 2:
				c.restoreEnds(g)
			case backed && !c.grows(g):
				c.restoreBegins(g)
			}
		},
		"": func(*rapid.T) { c.check(false) },
	})
	for g, stage := range c.restores {
		if !c.catalog.View().Dropped(g) {
			if stage == 1 {
				c.restoreRows(g)
			}
			c.restoreEnds(g)
		}
	}
	c.faults, c.down, c.unborn = nil, nil, nil
	c.pause(false)
	c.readAll(nodes[0])
	for _, late := range c.late {
		late()
	}
	c.check(true)
}

// check fails the test if a life of the source has applied a message twice. If whole is set, the
// whole queue was read. Then check also fails the test if the last life has neither applied a
// message nor written a dead letter for it.
func (c *sourceCluster) check(whole bool) {
	source := c.source()
	last := -1
	if whole {
		last = c.ordinal(source.Number, source.Partitions[0].Epoch)
	}
	hot := map[string]map[uint64]int64{}
	for m, q := range c.queue {
		k, there := c.catalog.View().Keyspaces[q.keyspace]
		if !there {
			continue
		}
		for ordinal := range len(c.ordinals) {
			n := c.count(k, messageID+uint64(m), ordinal)
			if n > 1 {
				c.t.Fatalf("message %d was applied %d times by life %d", m, n, ordinal)
			}
			if start := c.starts[ordinal]; n > 0 && uint64(m) < start.Lo {
				c.t.Fatalf("message %d was applied by life %d, which began at %v", m, ordinal, start)
			}
			if end, ended := c.ends[ordinal]; n > 0 && ended && uint64(m) >= end.Lo {
				c.t.Fatalf("message %d was applied by life %d, which ended at %v", m, ordinal, end)
			}
		}
		if !whole || uint64(m) < c.starts[last].Lo {
			continue
		}
		n := c.count(k, messageID+uint64(m), last)
		if n == 0 && !c.letters[letter{m, last}] {
			c.t.Fatalf("message %d for %s is neither counted nor a dead letter", m, q.keyspace)
		}
		if n == 0 && q.made == k.FirstGroup() {
			c.t.Fatalf("message %d for %s is a dead letter, and the keyspace was there before it", m, q.keyspace)
		}
		if hot[q.keyspace] == nil {
			hot[q.keyspace] = map[uint64]int64{}
		}
		hot[q.keyspace][uint64(m)%4] += n
	}
	for name, rows := range hot {
		for id, want := range rows {
			if got := c.count(c.catalog.View().Keyspaces[name], id, last); whole && got != want {
				c.t.Fatalf("row %d of %s has %d, its messages were applied %d times", id, name, got, want)
			}
		}
	}
}
