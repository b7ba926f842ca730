package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// fakeNode is a Backend that stores everything in maps. setFault makes its calls fail like those of
// a broken node.
type fakeNode struct {
	mu struct {
		sync.Mutex
		keyspaces map[string]*shard.Keyspace
		elsewhere map[string]*shard.Keyspace // created through another node, and not known here yet
		catchUps  int
		rows      map[string]map[uint64][]int64
		writes    uint64
		fault     string
		lastRead  shard.ReadOptions
		shards    *fakeShards
		writeBy   time.Time // deadline of the last write
		catalog   *catalog.View
		sets      apitest.NodeSets
		lastKey   dedup.RequestID
	}
	// If entered is not nil, every Get sends to entered and then waits for leave.
	entered, leave chan struct{}
	scanning       bool // a TopQuery does not end in time
	names          apitest.NodeNames
}

func newFakeNode() *fakeNode {
	n := &fakeNode{}
	n.reset()
	return n
}

// reset makes the node empty.
func (n *fakeNode) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.fault = ""
	n.mu.writes, n.mu.catchUps = 0, 0
	n.mu.elsewhere = nil
	n.mu.sets = apitest.NodeSets{}
	n.mu.keyspaces = map[string]*shard.Keyspace{}
	n.mu.rows = map[string]map[uint64][]int64{}
	n.mu.shards = newFakeShards()
	n.mu.catalog = catalog.New().View()
	n.mu.catalog.ClusterVersion = catalog.ClusterVersionMax
	for _, ks := range []shard.Keyspace{
		{Name: "posts", Kind: kinds.Counters, Columns: []string{"repost", "comment", "like", "view"}, Shards: 7},
		{Name: "users", Kind: kinds.Counters, Columns: []string{"posts", "followers", "following"}, Shards: 7},
		{Name: "unread", Kind: kinds.Unread, Columns: []string{"at", "comment", "like", "dm"}, Shards: 7, Settings: column.Settings[int64]{Floors: map[string]int64{"at": 0, "comment": 0, "like": 0, "dm": 0}}},
		{Name: "feed", Kind: kinds.Feed, Columns: []string{}, Shards: 7},
		{Name: "board", Kind: kinds.Board, Columns: []string{}, Shards: 1},
	} {
		n.mu.keyspaces[ks.Name] = &ks
		n.mu.rows[ks.Name] = map[uint64][]int64{}
	}
}

// setFault makes all later calls fail with a fault; "" ends the fault.
func (n *fakeNode) setFault(name string) {
	n.mu.Lock()
	n.mu.fault = name
	n.mu.Unlock()
}

// troubleLocked returns the error of the fault that is set.
func (n *fakeNode) troubleLocked() error {
	switch n.mu.fault {
	case "", "growing", "repeated_in_part", "node_behind", "shards_unreadable", "shards_crowd":
		return nil
	case "overloaded":
		return errs.ErrOverloaded
	case "too_late":
		return fmt.Errorf("%w: %w", errs.ErrOverloaded, errs.ErrTooLate)
	case "no_leader":
		return errs.ErrNoLeader
	case "unreadable":
		return &shard.UnreadableError{Keyspace: "posts", Shard: 3, Err: errs.ErrNoQuorum}
	case "no_quorum":
		return errs.ErrNoQuorum
	case "draining":
		return errs.ErrDraining
	case "memory_full":
		return &shard.NewRowError{}
	case "memory_full_op_1":
		return &shard.NewRowError{Op: 1}
	case "disk_full":
		return &errs.DiskFullError{FreeBytes: 1_000_000_000, NeededBytes: 1_200_000_000, ReserveBytes: 1_073_741_824}
	case "refused":
		return &catalog.RefusedError{Reason: "n2 is the only node that stays"}
	case "conflict":
		return errs.ErrConflict
	case "expired":
		return errs.ErrExpired
	case "ahead":
		return fmt.Errorf("%w: %w", errs.ErrExpired, errs.ErrKeyAhead)
	case "outcome_unknown":
		return errs.ErrOutcomeUnknown
	case "partial_unknown":
		return &shard.PartialError{Err: errs.ErrOutcomeUnknown, Applied: []uint64{1}, Unknown: []uint64{2}}
	case "partial_no_leader":
		return &shard.PartialError{Err: errs.ErrNoLeader, Applied: []uint64{1}}
	case "partial_overloaded":
		return &shard.PartialError{Err: errs.ErrOverloaded, Applied: []uint64{1}}
	case "partial_too_late":
		return &shard.PartialError{Err: fmt.Errorf("%w: %w", errs.ErrOverloaded, errs.ErrTooLate), Applied: []uint64{1}}
	case "partial_conflict":
		return &shard.PartialError{Err: errs.ErrConflict, Applied: []uint64{1}}
	case "partial_expired":
		return &shard.PartialError{Err: errs.ErrExpired, Applied: []uint64{1}}
	case "failure":
		return errors.New("disk /var/lib/secret is on fire")
	case "not_ready":
		return errors.New("group 3 is still applying its log")
	case "panic":
		panic("a fault that nobody foresaw")
	}
	panic("unknown fault " + n.mu.fault)
}

func (n *fakeNode) Keyspaces() []*shard.Keyspace {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.fault == "growing" {
		return []*shard.Keyspace{{Name: "posts", Kind: kinds.Counters, Columns: []string{"like"}, Shards: 7, CreatedShards: 1, Growing: &fakeProgress}}
	}
	var all []*shard.Keyspace
	for _, ks := range n.mu.keyspaces {
		all = append(all, ks)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// CatchUp adds the keyspaces and columns that were made through another node.
func (n *fakeNode) CatchUp(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.catchUps++
	if err := n.troubleLocked(); err != nil {
		return err
	}
	for name, ks := range n.mu.elsewhere {
		n.mu.keyspaces[name] = ks
		if n.mu.rows[name] == nil {
			n.mu.rows[name] = map[uint64][]int64{}
		}
	}
	return nil
}

func (n *fakeNode) Holds(*shard.Keyspace) bool { return true }

func (n *fakeNode) Keyspace(name string) *shard.Keyspace {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.keyspaces[name]
}

func (n *fakeNode) CreateKeyspace(_ context.Context, k shard.Keyspace) (*shard.Keyspace, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return nil, err
	}
	if k.Name == "meta" {
		return nil, &errs.ArgumentError{Field: "name", Problem: `"meta" is the group that holds the list of keyspaces`}
	}
	if k.Name == "unread" {
		return nil, &errs.ArgumentError{Field: "name", Problem: `"unread" is kept for a keyspace that is built in`}
	}
	if i := slices.Index(k.Columns, "id"); i >= 0 {
		return nil, &errs.ArgumentError{Field: fmt.Sprintf("columns[%d]", i), Problem: `"id" is the id of a row`}
	}
	if k.Name == "" || k.Name[0] < 'a' || k.Name[0] > 'z' {
		return nil, &errs.ArgumentError{Field: "name", Problem: "not a lower-case name"}
	}
	spread := k.Sharding
	switch spread {
	case "", shard.ShardingHash:
	case shard.ShardingModulo:
		k.Sharding = ""
	default:
		return nil, &errs.ArgumentError{Field: "sharding", Problem: fmt.Sprintf("%q is neither modulo nor hash", spread)}
	}
	if old, ok := n.mu.keyspaces[k.Name]; ok {
		if !slices.Equal(old.Columns, k.Columns) || !column.Equal(old.Settings, k.Settings) || k.Shards != 0 && old.Shards != k.Shards || spread != "" && old.Sharding != k.Sharding || old.IDs != k.IDs {
			return nil, errs.ErrKeyspaceExists
		}
		return old, nil
	}
	if k.Shards == 0 {
		k.Shards = shard.ShardsDefault
	}
	if k.IDs != "" {
		k.Names = catalog.NamesOf(k.Name)
		n.mu.keyspaces[k.Names] = &shard.Keyspace{Name: k.Names, Kind: kinds.Names, Columns: []string{}, Shards: 1}
	}
	n.mu.keyspaces[k.Name] = &k
	n.mu.rows[k.Name] = map[uint64][]int64{}
	if n.mu.fault == "shards_crowd" {
		k.Warning = "2 shards by modulo spread ids of layout weibo by their lowest bits, which are often zeros"
	}
	return &k, nil
}

func (n *fakeNode) ChangeSetting(_ context.Context, name, _ string, change *catalog.Command) (*shard.Keyspace, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return nil, err
	}
	old, ok := n.mu.keyspaces[name]
	if !ok {
		return nil, errs.ErrUnknownKeyspace
	}
	spread := *old
	if change.SetEverywhere != nil {
		spread.Everywhere = change.SetEverywhere.Everywhere
	}
	if limits := change.SetLimits; limits != nil && limits.Rows != nil {
		spread.Limits.Rows = *limits.Rows
	}
	if limits := change.SetLimits; limits != nil && limits.Bytes != nil {
		spread.Limits.Bytes = *limits.Bytes
	}
	n.mu.keyspaces[name] = &spread
	return &spread, nil
}

func (n *fakeNode) DropKeyspace(_ context.Context, name string) (*shard.Keyspace, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return nil, err
	}
	old, ok := n.mu.keyspaces[name]
	if !ok {
		return nil, errs.ErrUnknownKeyspace
	}
	if shard.IsBuiltin(name) {
		return nil, &catalog.RefusedError{Reason: "keyspace " + name + " is built in"}
	}
	delete(n.mu.keyspaces, name)
	delete(n.mu.rows, name)
	return old, nil
}

func (n *fakeNode) DropColumn(_ context.Context, name, column string) (*shard.Keyspace, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return nil, err
	}
	old, ok := n.mu.keyspaces[name]
	if !ok {
		return nil, errs.ErrUnknownKeyspace
	}
	if name == "posts" && column == "view" {
		return nil, &catalog.RefusedError{Reason: "column view of keyspace posts is built in"}
	}
	number := old.Column(column)
	if number < 0 {
		return nil, errs.ErrUnknownColumn
	}
	if len(old.ColumnNames()) == 1 {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("%s is the last column of keyspace %s", column, name)}
	}
	changed := *old
	changed.Columns, changed.Dropped = slices.Clone(old.Columns), append(slices.Clone(old.Dropped), number)
	changed.Columns[number] = ""
	n.mu.keyspaces[name] = &changed
	return &changed, nil
}

func (n *fakeNode) AddColumns(_ context.Context, name string, columns []column.Column) (*shard.Keyspace, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return nil, err
	}
	old, ok := n.mu.keyspaces[name]
	if !ok {
		return nil, errs.ErrUnknownKeyspace
	}
	wider := *old
	wider.Columns = slices.Clone(old.Columns)
	names, changes := column.Changes(columns)
	for _, name := range names {
		if wider.Column(name) < 0 {
			wider.Columns = append(wider.Columns, name)
		}
	}
	wider.Settings = column.After(old.Settings, changes)
	n.mu.keyspaces[name] = &wider
	return &wider, nil
}

// Read implements Backend.
func (n *fakeNode) Read(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	if n.names.Answer(ks.Name, query) {
		return nil
	}
	switch q := query.(type) {
	case *rows.Query:
		if q.Table == unread.Cursors {
			return n.cursors(ids, q)
		}
		return n.get(ks, ids, q.Width, opt, q.Rows)
	case *rows.Scan:
		return n.scan(ks, q, opt)
	case *counters.TopQuery:
		if n.scanning {
			q.Scanning, q.Read = true, 812
			return nil
		}
		return n.top(ks, q, opt)
	case *counters.HotQuery:
		top := counters.TopQuery{Column: q.Column, Limit: q.Limit}
		err := n.top(ks, &top, opt)
		q.Since, q.Error = time.UnixMilli(1_763_812_800_000), 3
		for _, row := range top.Top { // as if the whole count were gained within the window
			q.Gains = append(q.Gains, rankings.Gain{Key: row.ID, Gained: row.Count, Error: 1})
		}
		return err
	case *feed.Query:
		return n.feeds(ids, q)
	case *feed.GroupsQuery:
		return n.groups(ids[0], q)
	case *unread.BoardQuery:
		return n.board(q, opt)
	case *counters.PostsQuery:
		return n.newest(ids, q)
	}
	return n.readSets(ks, query, ids, opt)
}

func (n *fakeNode) get(ks *shard.Keyspace, ids []uint64, width int, opt *shard.ReadOptions, rows []int64) error {
	if n.entered != nil {
		n.entered <- struct{}{}
		<-n.leave
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lastRead = *opt
	if err := n.troubleLocked(); err != nil {
		return err
	}
	clear(rows)
	table := n.mu.rows[ks.Name]
	if ks.Kind == kinds.Unread {
		table = n.mu.shards.counts
	}
	for i, id := range ids {
		copy(rows[i*width:(i+1)*width], table[id])
	}
	return nil
}

func (n *fakeNode) Write(ks *shard.Keyspace, w *shard.Write) error {
	if err := w.Permitted(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return err
	}
	if n.names.Write(ks.Name, w) {
		return nil
	}
	n.mu.writeBy = w.Deadline
	n.mu.lastKey = w.ID
	w.Changed = w.Changed[:0]
	if len(w.Spaces) > 0 {
		ks = nil // the ops are on several keyspaces
	} else if ks.Kind != kinds.Counters {
		n.mu.shards.write(ks, w)
		n.mu.writes++
		w.Token.At = append(w.Token.At[:0], shard.GroupIndex{Group: 1, Index: n.mu.writes})
		return nil
	}
	ops := apitest.RowOps(w.Ops)
	if outbox, is := w.Ops.(counters.OutboxOps); is {
		ops = []engine.Op{n.mu.shards.publish(w, &outbox[0])}
	}
	w.Duplicate = n.mu.fault == "repeated_in_part" // a repeat whose ops have an unknown outcome
	for i, op := range ops {
		if w.Duplicate {
			op.Cells, w.Unknown = nil, append(w.Unknown, i)
		}
		n.writeOpLocked(keyspaceOf(w, ks, i), w, i, op)
	}
	n.mu.writes++
	w.Token.At = append(w.Token.At[:0], shard.GroupIndex{Group: 1, Index: n.mu.writes})
	return nil
}

// writeOpLocked applies the ith op of w to its row of ks.
func (n *fakeNode) writeOpLocked(ks *shard.Keyspace, w *shard.Write, i int, op engine.Op) {
	rows := n.mu.rows[ks.Name]
	if ks.Kind == kinds.Unread {
		rows = n.mu.shards.counts
	}
	row := make([]int64, len(ks.Columns))
	copy(row, rows[op.ID])
	if op.OfMember() && len(op.Cells) > 0 { // an op of unknown outcome has no cells
		sum, overflows, changes := n.memberLocked(ks, op, row)
		if op.Cells = nil; overflows {
			w.Overflows = append(w.Overflows, engine.Overflow{Op: i, Column: sum.Column})
		} else if changes {
			op, w.Changed = engine.Op{ID: op.ID, Cells: []engine.Cell{sum}}, append(w.Changed, i)
		}
	}
	if column, ok := applied(row, op); ok {
		rows[op.ID] = row
		w.Cuts = append(w.Cuts, cutShort(row, op, i)...)
	} else {
		w.Overflows = append(w.Overflows, engine.Overflow{Op: i, Column: column})
	}
	clear(w.Rows[i*w.Width : (i+1)*w.Width])
	copy(w.Rows[i*w.Width:(i+1)*w.Width], rows[op.ID])
}

// applied applies an op to the row, or returns the column that overflows.
func applied(row []int64, op engine.Op) (uint8, bool) {
	if op.Kind == engine.OpDelete {
		clear(row)
	}
	for _, cell := range op.Cells {
		if cell.Column&engine.FloorMark != 0 {
			continue
		}
		old := row[cell.Column]
		switch {
		case op.Kind == engine.OpSet:
			row[cell.Column] = cell.Value
		case cell.Value > 0 && old > math.MaxInt64-cell.Value, cell.Value < 0 && old < math.MinInt64-cell.Value:
			return cell.Column, false
		default:
			row[cell.Column] += cell.Value
		}
	}
	return 0, true
}

// cutShort reduces the subtractions of an op that would go below its floors. It returns the cuts.
func cutShort(row []int64, op engine.Op, number int) (cuts []engine.Cut) {
	for i, cell := range op.Cells {
		if i == 0 || op.Cells[i-1].Column&engine.FloorMark == 0 {
			continue
		}
		was, floor := row[cell.Column]-cell.Value, op.Cells[i-1].Value
		if stays := min(was, floor); row[cell.Column] < floor && cell.Value < 0 {
			row[cell.Column] = stays
			cuts = append(cuts, engine.Cut{Op: number, Column: cell.Column, Added: stays - was})
		}
	}
	return cuts
}

func (n *fakeNode) scan(ks *shard.Keyspace, q *rows.Scan, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lastRead = *opt
	if err := n.troubleLocked(); err != nil {
		return err
	}
	var ids []uint64
	for id, row := range n.mu.rows[ks.Name] {
		if (!q.HasAfter || id > q.After) && slices.ContainsFunc(row, func(v int64) bool { return v != 0 }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	q.IDs, q.More = ids[:min(q.Limit, len(ids))], len(ids) > q.Limit
	if q.SkipUnreadable {
		q.Unreadable = []int{1, 3}
	}
	for _, id := range q.IDs {
		row := make([]int64, q.Width)
		copy(row, n.mu.rows[ks.Name][id])
		q.Rows = append(q.Rows, row...)
	}
	return nil
}

func (n *fakeNode) top(ks *shard.Keyspace, q *counters.TopQuery, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lastRead = *opt
	if err := n.troubleLocked(); err != nil {
		return err
	}
	for id, row := range n.mu.rows[ks.Name] {
		if int(q.Column) < len(row) && row[q.Column] > 0 {
			q.Top = append(q.Top, engine.Place{ID: id, Count: row[q.Column]})
		}
	}
	slices.SortFunc(q.Top, engine.Place.Compare)
	q.Top = q.Top[:min(q.Limit, len(q.Top))]
	return nil
}

func (n *fakeNode) Status() shard.Status {
	return shard.Status{
		ClusterID: "b6d3a1f0", ClusterName: "likes", Node: "n1",
		Nodes: []shard.NodeStatus{{
			ID: "n1", Key: "n1.5f3a9c01", State: "alive", Version: "1.2.3",
			HTTPAddr: "127.0.0.1:7400", ClusterAddr: "127.0.0.1:7401", GossipAddr: "127.0.0.1:7402",
		}},
		Groups: []shard.GroupStatus{{
			Members: []shard.MemberStatus{{Node: "n1", Key: "n1.5f3a9c01", Replica: "n1.5f3a9c01#1", Voter: true}},
			ID:      1, Replica: "n1.5f3a9c01#1", Keyspace: "posts", Role: "leader", Leader: "n1", Term: 2, AppliedIndex: 40,
			CommitIndex: 40, SnapshotIndex: 12, Digest: "00c0ffee00c0ffee", Rows: 3, Bytes: 8192,
		}},
	}
}

func (n *fakeNode) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.troubleLocked()
}

// Catalog has users, and nothing else.
func (n *fakeNode) Catalog() *catalog.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.catalog
}

func (n *fakeNode) ChangeOnAll(_ context.Context, command *catalog.Command) (*catalog.Result, []string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.troubleLocked(); err != nil {
		return nil, nil, err
	}
	view, result := n.mu.catalog.After(command)
	n.mu.catalog = view
	var behind []string
	if n.mu.fault == "node_behind" {
		behind = []string{"n3"}
	}
	return result, behind, nil
}

func (n *fakeNode) lastWriteDeadline() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.writeBy
}

func (n *fakeNode) lastReadOptions() shard.ReadOptions {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.lastRead
}
