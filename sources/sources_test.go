package sources

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// queue is a queue of some partitions. Message i of a partition has position i.
type queue struct {
	mu         sync.Mutex
	partitions [][]string
	secrets    string // directory of the files of sources
	down       error
	password   string
	letters    []string
	reasons    []string  // reasons of the letters
	open       int       // brokers
	lists      int       // calls of Partitions
	first      uint64    // position of the first remaining message of each partition
	identity   string    // set when the queue is created again
	letterless bool      // the queue of the dead letters is missing
	withheld   uint64    // position from which on the queue returns no messages; 0 to return all
	written    [][]int64 // times of messages by partition and position, in Unix ns; set when a message is first read
	oldest     time.Time // time of message 0; each later message is a millisecond younger; if zero, a message has the time when it is first read

	hangs func(call string, cfg *source.Config) // called before each stat or read of a source's files, and before each report
}

func (q *queue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

func (q *queue) add(partition int, values ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.partitions[partition] = append(q.partitions[partition], values...)
}

func (q *queue) setDown(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.down = err
}

func (q *queue) hang(call string, cfg *source.Config) {
	q.mu.Lock()
	hangs := q.hangs
	q.mu.Unlock()
	if hangs != nil {
		hangs(call, cfg)
	}
}

func (q *queue) filesState(cfg *source.Config) string {
	q.hang("look", cfg)
	return source.Secrets{Dir: q.secrets}.State(cfg)
}

func (q *queue) opened() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open
}

// broker is a connection to a queue.
type broker struct {
	*queue
	password string
}

var errPassword = errors.New("wrong password")

func (q *queue) connect(cfg *source.Config, secrets source.Secrets) (source.Broker, error) {
	q.hang("open", cfg)
	access, err := secrets.Access(cfg)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open++
	return broker{q, access.Password}, nil
}

func (b broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	return nil
}

func (b broker) Denied(err error) bool { return errors.Is(err, errPassword) }

func (b broker) Identity(context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.password != b.queue.password {
		return "", errPassword
	}
	return cmp.Or(b.identity, "queue"), nil
}

func (b broker) Partitions(context.Context) (all []uint32, err error) {
	b.hang("partitions", &source.Config{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lists++
	if b.down != nil {
		return nil, b.down
	}
	for i := range b.partitions {
		all = append(all, uint32(i))
	}
	return all, nil
}

func (b broker) Bounds(_ context.Context, partition uint32) (first, end source.Position, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.password != b.queue.password {
		return first, end, errPassword
	}
	return source.Position{Lo: b.first}, source.Position{Lo: uint64(len(b.partitions[partition]))}, b.down
}

func (b broker) Read(_ context.Context, partition uint32, from source.Position, _ source.Mark) (source.Reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if from.Lo < b.first {
		return nil, source.Lost(source.Position{Lo: b.first}, "messages were removed before they were read")
	}
	return &queueReader{b.queue, partition, from.Lo}, nil
}

func (b broker) Again(_ context.Context, partition uint32, from, to source.Position, _ func()) (source.Again, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := source.Again{Whole: from.Lo >= b.first}
	for at := from.Lo; again.Whole && at < to.Lo && at < uint64(len(b.partitions[partition])); at++ {
		again.Messages = append(again.Messages, b.message(partition, at))
	}
	return again, b.down
}

// message returns a message, and sets its time if it has none. The caller holds mu.
func (q *queue) message(partition uint32, at uint64) source.Message {
	for n := uint64(len(q.written[partition])); n <= at; n++ {
		written := time.Now()
		if !q.oldest.IsZero() {
			written = q.oldest.Add(time.Duration(n) * time.Millisecond)
		}
		q.written[partition] = append(q.written[partition], written.UnixNano())
	}
	return source.Message{Position: source.Position{Lo: at}, Value: []byte(q.partitions[partition][at]), Time: time.Unix(0, q.written[partition][at])}
}

func (b broker) DeadLetter(_ context.Context, letters []source.Letter) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range letters {
		b.letters, b.reasons = append(b.letters, string(l.Value)), append(b.reasons, l.Reason)
	}
	return b.down
}

func (b broker) CheckLetters(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.letterless {
		return source.Stalled("nobody takes them")
	}
	return nil
}

type queueReader struct {
	*queue
	partition uint32
	at        uint64
}

func (r *queueReader) Next(ctx context.Context, limit int) (source.Fetched, error) {
	for {
		r.mu.Lock()
		var f source.Fetched
		for all := r.partitions[r.partition]; r.at < uint64(len(all)) && (r.withheld == 0 || r.at < r.withheld) && len(f.Messages) < limit; r.at++ {
			f.Messages = append(f.Messages, r.message(r.partition, r.at))
		}
		r.mu.Unlock()
		f.Next.Lo = r.at
		if len(f.Messages) > 0 {
			return f, nil
		}
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *queueReader) Commit(context.Context, source.Position) error { return nil }
func (r *queueReader) Close() error                                  { return nil }

// started is the Sources of a single node.
type started struct {
	*Sources
	t     testing.TB
	node  *node
	queue *queue
	hung  bool // calls hung until Close returned, so they may still open and close a broker
}

func start(t testing.TB, partitions int) *started {
	t.Helper()
	return startCluster(t, partitions, strings.Repeat("5", 32))
}

// startCluster does the same as start, for a cluster with the given id.
func startCluster(t testing.TB, partitions int, id string) *started {
	t.Helper()
	st := &started{t: t, queue: &queue{partitions: make([][]string, partitions), secrets: t.TempDir(), written: make([][]int64, partitions)}}
	st.Sources = New(Config{
		Node: func() (*shard.Node, error) { return st.node.Node, nil }, Self: "n1", Alive: func(string) bool { return true },
		Open: func(cfg *source.Config, secrets source.Secrets) (source.Broker, error) {
			return st.queue.connect(cfg, secrets)
		}, SecretsDir: st.queue.secrets, Logger: slog.New(slog.DiscardHandler),
	})
	opened, err := shard.Open(shard.Config{
		Dir: t.TempDir(), NodeKey: "n1", NodeName: "n1", Bootstrap: true, ClusterID: id, Version: "1.2.3", ClusterAddr: "127.0.0.1:0",
		HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402",
		Shards: map[string]int{"posts": 3, "users": 3}, // so that messages span shards
		Handlers: map[string]shard.Handler{ReportCall: func(ctx context.Context, call []byte) ([]byte, error) {
			st.queue.hang("report", &source.Config{})
			return st.HandleReport(ctx, call) // a test may replace the Sources
		}},
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	st.node = newNode(opened)
	st.every, st.filesState = 20*time.Millisecond, st.queue.filesState
	st.Start()
	t.Cleanup(func() {
		st.Close(context.Background())
		for end := time.Now().Add(must.BecomeMax); st.hung && st.queue.opened() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := st.queue.opened(); n != 0 {
			t.Errorf("%d brokers are left open", n)
		}
		if err := st.node.Close(must.Context(t)); err != nil {
			t.Error(err)
		}
	})
	if err := st.node.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}

const likes = `{"type":"nats","url":"nats://127.0.0.1:1","stream":"LIKES","batch":{"linger":"1ms"}`

func (st *started) put(more string) (*Source, error) {
	return st.Put(st.t.Context(), "likes", []byte(likes+more+"}"))
}

func need[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// eventually waits until holds is true for the source, and returns the source.
func (st *started) eventually(what string, holds func(*Source) bool) *Source {
	st.t.Helper()
	for end := time.Now().Add(must.BecomeMax); ; time.Sleep(5 * time.Millisecond) {
		of := need(st.Get(st.t.Context(), "likes"))(st.t)
		if holds(of) {
			return of
		}
		if time.Now().After(end) {
			text, _ := json.Marshal(of)
			st.t.Fatalf("it never came to be that %s: %s", what, text)
		}
	}
}

// through returns a condition that holds once all partitions are read to their ends and have the
// given number of messages in total.
func through(messages uint64) func(*Source) bool {
	return func(of *Source) bool {
		sum := uint64(0)
		for _, p := range of.Partitions {
			if p.Position == nil || p.Node != "n1" {
				return false
			}
			sum += p.Position.Lo
		}
		return sum == messages && of.Lag != nil && *of.Lag == 0
	}
}

// applied returns a condition that holds once the condition of through holds and Applied equals
// messages. The reader sets Applied a moment after its position.
func applied(messages uint64) func(*Source) bool {
	return func(of *Source) bool { return through(messages)(of) && of.Applied == messages }
}

func (st *started) count(id uint64) int64 {
	st.t.Helper()
	ks := st.node.Keyspace("posts")
	row := make([]int64, len(ks.Columns))
	err := st.node.Read(ks, &rows.Query{Width: len(row), Rows: row}, []uint64{id}, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: time.Now().Add(must.BecomeMax)})
	if err != nil {
		st.t.Fatal(err)
	}
	return row[ks.Column("like")]
}

func like(id uint64) string {
	return fmt.Sprintf(`{"keyspace":"posts","id":%d,"add":{"like":1}}`, id)
}

// For a Redis stream, a number is the first half of an id. If it were the second half, as in other
// queues, it would be below all ids, and all messages would count again.
func TestIDsOfRedis(t *testing.T) {
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1))
	need(st.Put(ctx, "likes", []byte(`{"type":"redis-stream","addr":"127.0.0.1:1","key":"likes"}`)))(t)
	st.eventually("all is read", through(1))
	need(st.Pause(ctx, "likes"))(t)
	var argument *errs.ArgumentError
	if _, err := st.Past(ctx, "likes", "posts", 0, "1"); !errors.As(err, &argument) || argument.Field != "from" || !strings.Contains(argument.Problem, "did you mean 1-0?") {
		t.Errorf("messages from 1: %v", err)
	}
	if _, err := st.Past(ctx, "likes", "posts", 0, "0-0"); err != nil {
		t.Errorf("messages from 0-0: %v", err)
	}
	for text, want := range map[string]sink.Position{"91": {Hi: 91}, "91-0": {Hi: 91}, "0-91": {Lo: 91}, "0": {}} {
		if of := need(st.Seek(ctx, "likes", map[uint32]string{0: text}))(t); *of.Partitions[0].Position != want {
			t.Errorf("a seek to %s: at %v", text, of.Partitions[0].Position)
		}
	}
}

// An operator creates a source, and then pauses it, changes it, moves it by a seek, resumes it and
// deletes it.
func TestLife(t *testing.T) {
	st, ctx := start(t, 2), t.Context()
	if _, err := st.Get(ctx, "likes"); !errors.Is(err, ErrUnknownSource) {
		t.Errorf("a source that is not there: %v", err)
	}
	for range 100 {
		st.queue.add(0, like(1))
		st.queue.add(1, like(2))
	}
	st.queue.add(1, "poison")
	need(st.put(""))(t)
	of := st.eventually("all is read", through(201))
	if of.Type != "nats" || of.State != "running" || of.Reason != "" || of.Node != "n1" || of.Applied != 200 || of.Rejected != 1 || len(of.Partitions) != 2 {
		t.Errorf("it is %+v", of)
	}
	if a, b := st.count(1), st.count(2); a != 100 || b != 100 {
		t.Errorf("counted %d and %d", a, b)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(st.Sources)
	families := need(registry.Gather())(t)
	names := map[string]int{}
	for _, f := range families {
		names[f.GetName()] = len(f.GetMetric())
	}
	if len(names) != 6 || names["countd_source_position"] != 2 || names["countd_source_state"] != 2 || names["countd_source_errors_total"] != 4 {
		t.Errorf("metrics %v", names)
	}

	var refused *catalog.RefusedError
	if _, err := st.Seek(ctx, "likes", map[uint32]string{0: "90"}); !errors.As(err, &refused) {
		t.Errorf("a seek while it ran: %v", err)
	}
	need(st.put(`,"on-error":"skip"`))(t) // keeps the meaning of messages, so the source is not paused
	st.queue.add(0, like(1))
	st.eventually("it goes on", through(202))

	of = need(st.Pause(ctx, "likes"))(t)
	if of.State != "paused" || of.Partitions[0].State != "paused" || of.Partitions[0].Position.Lo != 101 || st.queue.opened() != 0 {
		t.Errorf("paused it is %+v, %d brokers are open", of, st.queue.opened())
	}
	st.queue.add(0, like(1))
	if of = need(st.Get(ctx, "likes"))(t); of.Lag == nil || *of.Lag != 1 {
		t.Errorf("its lag is %v", of.Lag)
	}
	// The shards are at one position, so a change of the meaning succeeds.
	need(st.put(`,"map":{"keyspace":"posts","id":"$.id","column":"like","add":"2"}`))(t)
	var argument *errs.ArgumentError
	for field, to := range map[string]map[uint32]string{"positions.9": {9: "1"}, "positions.0": {0: "x"}} {
		if _, err := st.Seek(ctx, "likes", to); !errors.As(err, &argument) || argument.Field != field {
			t.Errorf("a seek to %v: %v", to, err)
		}
	}
	need(st.Seek(ctx, "likes", map[uint32]string{0: "91"}))(t)
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("it is read from there", through(203))
	if got := st.count(1); got != 101+2*11 {
		t.Errorf("counted %d, want %d", got, 101+2*11)
	}

	if err := st.Delete(ctx, "likes"); err != nil {
		t.Fatal(err)
	}
	if err := st.Delete(ctx, "likes"); !errors.Is(err, ErrUnknownSource) {
		t.Errorf("deleted twice: %v", err)
	}
	need(st.put(""))(t)
	st.eventually("another of the name is read", through(203))
	if got := st.count(1); got != 101+2*11+102 {
		t.Errorf("counted %d", got)
	}
	if all := need(st.List(ctx))(t); len(all) != 1 {
		t.Errorf("there are %d sources", len(all))
	}
}

// The meaning of messages changes between two messages, in a running source and in a paused one.
func TestNewMeaning(t *testing.T) {
	st, ctx := start(t, 2), t.Context()
	adds := func(n int) string {
		return fmt.Sprintf(`,"map":{"keyspace":"posts","id":"$.id","column":"like","add":"%d"}`, n)
	}
	st.queue.add(0, like(1), like(1))
	need(st.put(""))(t)
	st.eventually("it is read", through(2))
	st.queue.add(0, like(1))
	if of := need(st.put(adds(10)))(t); of.State != source.StateRunning {
		t.Errorf("changed while it ran it is %+v", of)
	}
	st.queue.add(0, like(1))
	st.eventually("it goes on", through(4))
	// The third message counts under one of the two meanings.
	if got := st.count(1); got != 2+1+10 && got != 2+10+10 {
		t.Errorf("counted %d", got)
	}
	before := st.count(1)
	need(st.Pause(ctx, "likes"))(t)
	st.queue.add(0, like(1))
	if of := need(st.put(adds(100)))(t); of.State != source.StatePaused || of.Partitions[0].Position == nil || of.Partitions[0].Position.Lo != 4 {
		t.Errorf("changed while it was paused it is %+v", of)
	}
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("it is read with the new meaning", through(5))
	if got := st.count(1); got != before+100 {
		t.Errorf("counted %d, want %d", got, before+100)
	}
}

// A source that is resumed while its reader is still ending is read again.
func TestResumedWhileEnding(t *testing.T) {
	st := start(t, 1)
	st.queue.add(0, like(1))
	need(st.put(""))(t)
	st.eventually("it is read", through(1))
	st.mu.Lock()
	for _, r := range st.mu.readers {
		r.end() // like match, when it notices the pause
	}
	st.mu.Unlock()
	st.queue.add(0, like(1))
	st.eventually("it is read again", through(2))
}

// A source that begins at the end is created only if its queue answers.
func TestLatest(t *testing.T) {
	st := start(t, 1)
	st.queue.add(0, like(1), like(1))
	st.queue.setDown(errors.New("connection refused"))
	var refused *catalog.RefusedError
	if _, err := st.put(`,"start":"latest"`); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "connection refused") {
		t.Fatalf("made while its queue is down: %v", err)
	}
	if all := need(st.List(t.Context()))(t); len(all) != 0 {
		t.Fatalf("it was made: %+v", all)
	}
	st.queue.setDown(nil)
	need(st.put(`,"start":"latest"`))(t)
	st.queue.add(0, like(1))
	st.eventually("the new message is read", through(3))
	if got := st.count(1); got != 1 {
		t.Errorf("counted %d", got)
	}
}

// If the queue of a source does not answer, its reason says so.
func TestDown(t *testing.T) {
	st := start(t, 1)
	st.queue.setDown(errors.New("connection refused"))
	need(st.put(""))(t)
	st.eventually("it says why", func(of *Source) bool { return strings.Contains(of.Reason, "connection refused") })
	if _, err := st.Put(t.Context(), "likes", []byte(`{"name":"other"}`)); err == nil {
		t.Error("a body with another name was taken")
	}
}

// Each partition has one living owner. Few partitions move when a node leaves. A draining node owns
// no partition while another node is active.
func TestOwner(t *testing.T) {
	dead := map[string]bool{}
	s := New(Config{Self: "n1", Alive: func(key string) bool { return !dead[key] }})
	view := &catalog.View{}
	view.Nodes = map[string]catalog.Node{}
	for _, key := range []string{"n1", "n2", "n3"} {
		view.Nodes[key] = catalog.Node{Key: key, State: catalog.NodeActive}
	}
	owners := func() (all []string, of map[string]int) {
		of = map[string]int{}
		for p := range uint32(300) {
			all = append(all, s.owner(view, 7<<32|1, p))
			of[all[p]]++
		}
		return all, of
	}
	before, of := owners()
	for key := range view.Nodes {
		if of[key] < 60 {
			t.Errorf("%s owns %d of 300", key, of[key])
		}
	}
	dead["n2"] = true
	after, _ := owners()
	for p := range before {
		if before[p] != "n2" && after[p] != before[p] || after[p] == "n2" {
			t.Errorf("partition %d went from %s to %s", p, before[p], after[p])
		}
	}
	n1 := view.Nodes["n1"]
	n1.State = catalog.NodeDraining
	view.Nodes["n1"] = n1
	if _, of := owners(); of["n3"] != 300 {
		t.Errorf("beside a node that drains and a dead one: %v", of)
	}
	dead["n3"] = true
	if _, of := owners(); of["n1"] != 300 {
		t.Errorf("a node by itself that drains: %v", of)
	}
}

// The start of a source is "latest", but the node that created it died before it recorded the start
// positions. Once the source is resumed, all its partitions begin at the end of the queue.
func TestInterruptedBeginning(t *testing.T) {
	for name, resume := range map[string]func(*started) error{
		"resumed": func(st *started) error { return nil },
		"made again": func(st *started) error {
			of, err := st.put(`,"start":"latest"`)
			if err == nil && of.State != "running" {
				err = errors.New(of.State)
			}
			return err
		},
		"sought": func(st *started) error {
			_, err := st.Seek(st.t.Context(), "likes", map[uint32]string{2: "1"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := start(t, 3)
			for partition := range 3 {
				st.queue.add(partition, like(1), like(1))
			}
			cfg, err := source.ParseNamed("likes", []byte(likes+`,"start":"latest"}`))
			if err != nil {
				t.Fatal(err)
			}
			need(st.node.CreateSource(t.Context(), "likes", cfg.JSON(), true))(t)
			if err := resume(st); err != nil {
				t.Fatal(err)
			}
			need(st.Resume(t.Context(), "likes"))(t)
			for partition := range 3 {
				st.queue.add(partition, like(1))
			}
			want := uint64(3)
			if name == "sought" {
				want++
			}
			if of := st.eventually("it is read", func(of *Source) bool { return of.Lag != nil && *of.Lag == 0 && of.Applied >= want }); of.Applied != want {
				t.Errorf("%d messages were counted, want %d", of.Applied, want)
			}
		})
	}
}

// The reader of a deleted source may still be ending while a new source of the same name is read.
// The metrics then show the new source.
func TestMetricsOfOneName(t *testing.T) {
	st := start(t, 1)
	st.queue.add(0, like(1))
	need(st.put(""))(t)
	st.eventually("it is read", through(1))
	st.mu.Lock()
	for number, r := range maps.Clone(st.mu.readers) {
		st.mu.readers[number-1] = r
	}
	st.mu.Unlock()
	registry := prometheus.NewRegistry()
	registry.MustRegister(st.Sources)
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}

// Past returns the floor of a column with each event, or the op's floor if that is higher.
func TestPastHasFloorsOfColumns(t *testing.T) {
	st, ctx := start(t, 1), t.Context()
	zero := int64(0)
	need(st.node.AddColumns(ctx, "posts", []column.Column{{Name: "like", Floor: &zero}}))(t)
	st.queue.add(0, `{"keyspace":"posts","id":1,"add":{"like":-1,"view":2}}`, `{"keyspace":"posts","id":1,"add":{"like":-1},"floor":-5}`)
	need(st.put(""))(t)
	st.eventually("it is read", through(2))
	past := need(st.Past(ctx, "likes", "posts", 0, "0"))(t)
	got, want := need(json.Marshal(past.Events))(t), `[{"position":0,"id":"1","add":{"like":-1},"floor":0},{"position":0,"id":"1","add":{"view":2}},{"position":1,"id":"1","add":{"like":-1},"floor":0}]`
	if string(got) != want || st.count(1) != 0 {
		t.Errorf("%s, want %s", got, want)
	}
}

// Past refuses positions below the start of a source. An earlier source of the same name may have
// counted the messages there, with another mapping.
func TestPastBeforeTheBeginning(t *testing.T) {
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1), like(1))
	need(st.put(""))(t)
	st.eventually("it is read", through(2))
	if err := st.Delete(ctx, "likes"); err != nil {
		t.Fatal(err)
	}
	need(st.put(`,"start":"latest"` + likesBy(3)))(t)
	st.queue.add(0, like(1))
	st.eventually("another of the name is read", through(3))
	var refused *catalog.RefusedError
	if past, err := st.Past(ctx, "likes", "posts", 0, "0"); !errors.As(err, &refused) {
		t.Errorf("from before it began: %+v, %v", past, err)
	}
	if past := need(st.Past(ctx, "likes", "posts", 0, "2"))(t); len(past.Events) != 1 {
		t.Errorf("from where it began: %+v", past)
	}
}
