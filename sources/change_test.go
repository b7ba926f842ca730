package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// likesBy returns a configuration in which a like counts n.
func likesBy(n int) string {
	return fmt.Sprintf(`,"map":{"keyspace":"posts","id":"$.id","column":"like","add":"%d"}`, n)
}

// If a creation fails, but its repeat has succeeded, the failed call does not delete the source.
func TestFailedCreationBesideItsRepeat(t *testing.T) {
	t.Parallel()
	st := start(t, 1)
	st.queue.add(0, like(1), like(1))
	waits, goesOn := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	st.queue.set(func() {
		st.queue.hangs = func(call string, _ *source.Config) {
			if call == "partitions" && calls.Add(1) == 1 {
				close(waits)
				<-goesOn
			}
		}
	})
	failed := make(chan error, 1)
	go func() {
		_, err := st.put(`,"start":"latest"`)
		failed <- err
	}()
	<-waits
	if of := need(st.put(`,"start":"latest"`))(t); of.State != source.StateRunning {
		t.Fatalf("the repeat has made %+v", of)
	}
	st.queue.setDown(errors.New("connection refused"))
	close(goesOn)
	err := <-failed
	st.queue.setDown(nil)
	if of, gone := st.Get(t.Context(), "likes"); gone != nil || of.State != source.StateRunning {
		t.Fatalf("the source is %+v, %v after the first call ended with %v", of, gone, err)
	}
	st.queue.add(0, like(1))
	st.eventually("it is read", through(3))
	if got := st.count(1); got != 1 {
		t.Errorf("counted %d", got)
	}
}

// While one call records the start of a source, another call changes the meaning of its messages.
// Then the first call reads the source again. It does not report that the queue cannot be read.
func TestChangeWhileBeginning(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(st *started) error{
		"put": func(st *started) error {
			_, err := st.put(`,"start":"latest"` + likesBy(1))
			return err
		},
		"resume": func(st *started) error {
			cfg, err := source.ParseNamed("likes", []byte(likes+`,"start":"latest"`+likesBy(1)+"}"))
			if err == nil {
				_, err = st.node.CreateSource(st.t.Context(), "likes", cfg.JSON(), true)
			}
			if err == nil {
				_, err = st.Resume(st.t.Context(), "likes")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := start(t, 1)
			st.queue.add(0, like(1))
			waits, goesOn := make(chan struct{}), make(chan struct{})
			var calls atomic.Int32
			st.queue.set(func() {
				st.queue.hangs = func(call string, _ *source.Config) {
					if call == "partitions" && calls.Add(1) == 1 {
						close(waits)
						<-goesOn
					}
				}
			})
			failed := make(chan error, 1)
			go func() { failed <- late(st) }()
			<-waits
			need(st.put(`,"start":"latest"` + likesBy(2)))(t)
			close(goesOn)
			if err := <-failed; err != nil {
				t.Error(err)
			}
			st.queue.add(0, like(1))
			st.eventually("it is read", through(2))
		})
	}
}

// If several calls change the meaning of messages concurrently, all of them succeed, one after the
// other.
func TestConcurrentMeanings(t *testing.T) {
	t.Parallel()
	st := start(t, 1)
	st.queue.add(0, like(1))
	need(st.put(likesBy(1)))(t)
	st.eventually("it is read", through(1))
	for round := range 5 {
		var changes sync.WaitGroup
		for n := range 3 {
			changes.Go(func() {
				if _, err := st.put(likesBy(10*round + n + 2)); err != nil {
					t.Errorf("change %d of round %d: %v", n, round, err)
				}
			})
		}
		changes.Wait()
	}
	st.eventually("it is read on", through(1))
}

// whileChanging calls the function change. Once change has made the source Changing, whileChanging
// calls the function during. change continues only after that function has returned.
func (st *started) whileChanging(during, change func()) {
	waits, goesOn := make(chan struct{}), make(chan struct{})
	var asked atomic.Bool
	st.queue.set(func() {
		st.queue.hangs = func(call string, _ *source.Config) {
			if of, err := st.node.Source("likes"); call == "report" && err == nil && of.Changing && asked.CompareAndSwap(false, true) {
				close(waits)
				<-goesOn
			}
		}
	})
	var changing sync.WaitGroup
	changing.Go(change)
	<-waits
	defer changing.Wait()
	defer close(goesOn)
	during()
}

// If an operator pauses a source during a change, the pause lasts, and the change succeeds.
func TestPauseDuringChange(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1))
	need(st.put(likesBy(1)))(t)
	st.eventually("it is read", through(1))
	for add := 2; add < 7; add++ {
		var of *Source
		var err error
		st.whileChanging(func() { need(st.Pause(ctx, "likes"))(t) }, func() { of, err = st.put(likesBy(add)) })
		if now := need(st.Get(ctx, "likes"))(t); err != nil || now.State != source.StatePaused || of.State != source.StatePaused || !strings.Contains(string(now.Config), fmt.Sprintf(`"add":"%d"`, add)) {
			t.Fatalf("after the change, %v, the source is %+v", err, now)
		}
		need(st.Resume(ctx, "likes"))(t)
	}
}

// If the node of a creation or change died, a repeat of the call makes the source run again. But a
// source that an operator has paused stays paused.
func TestChangeAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		start  string
		before func(st *started, of catalog.Source)
		state  string
	}{
		"made, not begun": {`,"start":"latest"`, func(*started, catalog.Source) {}, source.StateRunning},
		"made and begun": {`,"start":"latest"`, func(st *started, of catalog.Source) {
			need(0, st.begin(st.t.Context(), st.node, of))(st.t)
		}, source.StateRunning},
		"paused for a change": {``, func(st *started, of catalog.Source) {
			need(st.node.SetPaused(st.t.Context(), of, false, false))(st.t)
			_, _, err := st.applyChange(st.t.Context(), "likes", func(n *node, of catalog.Source, err error) (catalog.Source, error) {
				if err != nil {
					return of, err
				}
				return n.SetPaused(st.t.Context(), of, true, true) // fails if a partition has begun since the source was read
			})
			need(0, err)(st.t)
		}, source.StateRunning},
		"paused by an operator": {`,"start":"latest"`, func(st *started, _ catalog.Source) {
			need(st.Pause(st.t.Context(), "likes"))(st.t)
		}, source.StatePaused},
	} {
		for more, change := range map[string]string{"the same": "", "another": likesBy(2)} {
			t.Run(name+", "+more, func(t *testing.T) {
				st := start(t, 2)
				st.queue.add(0, like(1), like(1))
				cfg := need(source.ParseNamed("likes", []byte(likes+test.start+"}")))(t)
				of := need(st.node.CreateSource(t.Context(), "likes", cfg.JSON(), true))(t)
				if shown := need(st.Get(t.Context(), "likes"))(t); !strings.Contains(shown.Reason, "did not end") {
					t.Errorf("it is shown as %+v", shown)
				}
				test.before(st, of)
				if of := need(st.put(test.start + change))(t); of.State != test.state {
					t.Fatalf("it is %+v", of)
				}
				if now := need(st.node.Source("likes"))(t); now.Changing {
					t.Errorf("it is %+v", now)
				}
				need(st.Resume(t.Context(), "likes"))(t)
				st.eventually("it is read", through(2))
			})
		}
	}
}

// A source that is deleted during a change stays deleted. If the change created the source again, a
// reader would count the queue from the start.
func TestDeleteDuringChange(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1))
	need(st.put(likesBy(1)))(t)
	st.eventually("it is read", through(1))
	var err error
	st.whileChanging(func() { need(0, st.Delete(ctx, "likes"))(t) }, func() { _, err = st.put(likesBy(2)) })
	if _, gone := st.Get(ctx, "likes"); !errors.Is(gone, ErrUnknownSource) || err == nil {
		t.Errorf("the change ended with %v, and then: %v", err, gone)
	}
}

// operation is a call of an operator, and when it ran.
type operation struct {
	kind       string
	add        int // what each message adds, as a put configures it
	begun, end int64
	err        error
}

// certain reports whether an operation was acknowledged.
func (o *operation) certain() bool { return o.err == nil }

// Operators at several nodes change a source concurrently, and some do not wait for their answers.
// An acknowledged change lasts, unless an overlapping or later operation may have undone it. Each
// message counts once, under one of the configurations, unless an operator deleted the source or
// called Seek.
func TestConcurrentChanges(t *testing.T) {
	t.Parallel()
	const nodes = 3
	st := start(t, 1)
	all := []*Sources{st.Sources}
	for range nodes - 1 { // these Sources read nothing; each serves the calls of one operator
		all = append(all, New(Config{
			Node: func() (*shard.Node, error) { return st.node.Node, nil }, Self: "n1", Alive: func(string) bool { return true },
			Open: st.cfg.Open, Logger: slog.New(slog.DiscardHandler),
		}))
	}
	var clock atomic.Int64
	message := 0
	rounds := 0
	rapid.Check(t, func(t *rapid.T) {
		if rounds++; rounds > 12 { // few rounds, because each takes a second until the readers end
			return
		}
		_ = st.Delete(st.t.Context(), "likes")
		first := message
		publish := func(n int) {
			for range n {
				st.queue.add(0, fmt.Sprintf(`{"id":%d}`, 1000+message))
				message++
			}
		}
		publish(3)
		history := []*operation{{kind: "put", add: 1}}
		if _, err := all[0].Put(st.t.Context(), "likes", []byte(likes+likesBy(1)+fmt.Sprintf(`,"start":{"0":%d}}`, first))); err != nil {
			t.Fatal(err)
		}
		history[0].end = clock.Add(1)
		var mu sync.Mutex
		var running sync.WaitGroup
		kinds := []string{"put", "put", "put", "pause", "pause", "resume", "resume"}
		if rapid.IntRange(0, 3).Draw(t, "moves") == 0 {
			kinds = append(kinds, "seek", "delete")
		}
		for operator := range nodes {
			var calls []operation
			var waits, gaps []time.Duration
			for i := range rapid.IntRange(1, 4).Draw(t, "calls") {
				calls = append(calls, operation{kind: rapid.SampledFrom(kinds).Draw(t, "kind"), add: 10*operator + i + 2})
				waits = append(waits, rapid.SampledFrom([]time.Duration{time.Minute, time.Minute, time.Minute, 2 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}).Draw(t, "waits"))
				gaps = append(gaps, time.Duration(rapid.IntRange(0, 30).Draw(t, "gap"))*time.Millisecond)
			}
			running.Go(func() {
				for i := range calls {
					time.Sleep(gaps[i])
					o := &calls[i]
					ctx, cancel := context.WithTimeout(st.t.Context(), waits[i])
					o.begun = clock.Add(1)
					switch o.kind {
					case "put":
						_, o.err = all[operator].Put(ctx, "likes", []byte(likes+likesBy(o.add)+fmt.Sprintf(`,"start":{"0":%d}}`, first)))
					case "pause":
						_, o.err = all[operator].Pause(ctx, "likes")
					case "resume":
						_, o.err = all[operator].Resume(ctx, "likes")
					case "seek":
						_, o.err = all[operator].Seek(ctx, "likes", map[uint32]string{0: fmt.Sprint(first)})
					case "delete":
						o.err = all[operator].Delete(ctx, "likes")
					}
					o.end = clock.Add(1)
					cancel()
					mu.Lock()
					history = append(history, o)
					mu.Unlock()
				}
			})
		}
		publish(3)
		running.Wait()
		publish(3)
		t.Logf("history %s", told(history))

		// later reports whether an operation of one of the kinds may have run after the given
		// operation.
		later := func(than *operation, kinds ...string) bool {
			for _, o := range history {
				if o != than && o.end > than.begun && strings.Contains(strings.Join(kinds, " "), o.kind) {
					return true
				}
			}
			return false
		}
		of, err := st.node.Source("likes")
		deleted, moved := false, false
		for _, o := range history {
			deleted = deleted || o.kind == "delete"
			moved = moved || o.kind == "seek"
			if !o.certain() || later(o, "delete") {
				continue
			}
			switch {
			case o.kind == "delete" && !later(o, "put") && !errors.Is(err, ErrUnknownSource):
				t.Fatalf("%+v: the source is %+v, %v", o, of, err)
			case o.kind == "put" && (err != nil || !later(o, "put") && !strings.Contains(string(of.Config), fmt.Sprintf(`"add":"%d"`, o.add))):
				t.Fatalf("%+v: the source is %+v, %v", o, of, err)
			case o.kind == "pause" && !later(o, "resume") && !of.Paused:
				t.Fatalf("%+v: the source is %+v, %v", o, of, err)
			case o.kind == "resume" && !later(o, "pause", "seek", "put") && of.Paused:
				t.Fatalf("%+v: the source is %+v, %v", o, of, err)
			case o.kind == "put" && !later(o, "pause", "seek", "put") && of.Changing:
				t.Fatalf("%+v: the source is %+v, %v", o, of, err)
			}
		}
		if deleted || err != nil {
			return
		}
		if _, err := st.Resume(st.t.Context(), "likes"); err != nil {
			t.Fatal(err)
		}
		st.eventually("it is read", through(uint64(message)))
		adds := map[int64]bool{}
		for _, o := range history {
			adds[int64(o.add)] = o.kind == "put" || adds[int64(o.add)]
		}
		for m := first; m < message; m++ {
			if got := st.count(uint64(1000 + m)); !moved && !adds[got] || got == 0 {
				t.Fatalf("message %d counted %d", m, got)
			}
		}
	})
}

func told(history []*operation) string {
	var b strings.Builder
	for _, o := range history {
		fmt.Fprintf(&b, "\n%d…%d %s %d: %v", o.begun, o.end, o.kind, o.add, o.err)
	}
	return b.String()
}

// Another publication numbers the changes of a transaction differently. So a source whose position
// is inside a transaction refuses a new publication.
func TestChangeInsideTransaction(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	put := func(publication, add string) (*Source, error) {
		return st.Put(ctx, "likes", fmt.Appendf(nil, `{"type":"postgres","dsn":"postgres://127.0.0.1:1/app","slot":"likes","publication":"%s","format":"debezium",
			"map":{"keyspace":"posts","id":"$.post","column":"like","add":"%s"},"batch":{"linger":"1ms"}}`, publication, add))
	}
	need(put("one", "1"))(t)
	need(put("two", "1"))(t) // nothing is read yet
	st.queue.add(0, `{"op":"c","after":{"post":1}}`)
	st.eventually("it is read", through(1))
	need(put("two", "2"))(t)
	for _, pause := range []bool{false, true} {
		if pause {
			need(st.Pause(ctx, "likes"))(t)
		}
		var refused *catalog.RefusedError
		if _, err := put("three", "2"); !errors.As(err, &refused) || !strings.Contains(err.Error(), "inside a transaction") {
			t.Errorf("changed inside a transaction: %v", err)
		}
		if of := need(st.node.Source("likes"))(t); of.Paused != pause || of.Changing || !strings.Contains(string(of.Config), "two") {
			t.Errorf("after it was refused, the source is %+v", of)
		}
	}
}

// Past refuses positions of messages that were counted under an earlier map.
func TestPastOfAnotherMeaning(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	event := `{"id":1}`
	need(st.put(likesBy(1)))(t)
	st.queue.add(0, event, event, event, event, event)
	st.eventually("it is read", through(5))
	need(st.put(likesBy(2)))(t)
	st.queue.add(0, event)
	st.eventually("it is read", through(6))
	for _, from := range []string{"0", "4"} {
		var refused *catalog.RefusedError
		if _, err := st.Past(ctx, "likes", "posts", 0, from); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "before 5") {
			t.Errorf("messages from %s: %v", from, err)
		}
	}
	if past := need(st.Past(ctx, "likes", "posts", 0, "5"))(t); len(past.Events) != 1 || past.Events[0].Add["like"] != 2 {
		t.Errorf("from 5 on: %+v", past)
	}
	need(st.Pause(ctx, "likes"))(t)
	need(st.Seek(ctx, "likes", map[uint32]string{0: "2"}))(t)
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("it is read", through(6))
	if _, err := st.Past(ctx, "likes", "posts", 0, "2"); err == nil {
		t.Error("after a seek back, messages that both maps have counted are told")
	}
}

// A failed change does not leave the source Changing, even if a partition began during the change.
func TestFailedChange(t *testing.T) {
	t.Parallel()
	st := start(t, 1)
	st.queue.add(0, like(1))
	need(st.put(likesBy(1)))(t)
	st.eventually("it is read", through(1))
	ctx, cancel := context.WithCancel(t.Context())
	var err, begun error
	st.whileChanging(func() {
		of := need(st.node.Source("likes"))(t)
		begun = st.node.sink.Begin(t.Context(), of.Number, map[uint32]source.Position{7: {}}, "queue")
		cancel()
	}, func() { _, err = st.Put(ctx, "likes", []byte(likes+likesBy(2)+"}")) })
	if err == nil || begun != nil {
		t.Fatalf("the change ended with %v, the beginning with %v", err, begun)
	}
	if of := need(st.node.Source("likes"))(t); of.Paused || len(of.Partitions) != 2 {
		t.Errorf("it is left as %+v", of)
	}
}

// nobodyReads makes another node own partition 0 of a source until the returned function is called.
func (st *started) nobodyReads() (end func()) {
	st.t.Helper()
	other := "n2"
	change := func(command *catalog.Command) {
		st.t.Helper()
		if r, err := st.node.Change(st.t.Context(), command); err != nil || r.Refused != "" {
			st.t.Fatal(r, err)
		}
	}
	before := need(st.node.CreateSource(st.t.Context(), "before", []byte(likes+"}"), true))(st.t)
	need(0, st.node.DeleteSource(st.t.Context(), before))(st.t)
	owns := func(n uint64) bool { return weight(before.Number+n, 0, other) > weight(before.Number+n, 0, "n1") }
	for n := 2; !owns(1) || !owns(2) || !owns(3); n++ { // the source gets one of these three numbers
		other = fmt.Sprint("n", n)
	}
	node := st.node.Catalog().Nodes["n1"]
	node.Key, node.Name, node.ClusterAddr, node.HTTPAddr, node.GossipAddr = other, other, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	change(&catalog.Command{PutNode: &catalog.PutNodeEntry{Node: node}})
	return func() {
		st.t.Helper()
		change(&catalog.Command{SetNodeState: &catalog.SetNodeStateEntry{Key: other, State: catalog.NodeDraining}})
	}
}

// If the start of a source is changed before the source has begun, the source begins at the start
// that the last change has set. A late start by an earlier change has no effect.
func TestStartBeforeItBegins(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, last string
		counts      int64
	}{
		"earliest, then latest": {"", `,"start":"latest"`, 1},
		"latest, then earliest": {`,"start":"latest"`, "", 3},
		"latest, then a place":  {`,"start":"latest"`, `,"start":{"0":"1"}`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			st := start(t, 1)
			goesOn := st.nobodyReads()
			st.queue.add(0, like(1), like(1))
			cfg := need(source.ParseNamed("likes", []byte(likes+test.first+"}")))(t)
			of := need(st.node.CreateSource(t.Context(), "likes", cfg.JSON(), !cfg.Start.Earliest()))(t)
			need(st.put(test.last))(t)
			late := source.Position{}
			if !cfg.Start.Earliest() {
				late.Lo = 2
			}
			if err := st.node.sink.Begin(t.Context(), of.Number, map[uint32]source.Position{0: late}, "queue"); !errors.Is(err, sink.ErrStopped) {
				t.Errorf("a late start ends with %v", err)
			}
			st.queue.add(0, like(1))
			goesOn()
			st.eventually("it is read", through(3))
			if got := st.count(1); got != test.counts {
				t.Errorf("counted %d, want %d", got, test.counts)
			}
		})
	}
}

// If the new start of a source cannot be recorded, the source stays as it was.
func TestFailedStart(t *testing.T) {
	t.Parallel()
	st := start(t, 1)
	goesOn := st.nobodyReads()
	st.queue.add(0, like(1))
	need(st.put(""))(t)
	st.queue.setDown(errors.New("connection refused"))
	if _, err := st.put(`,"start":"latest"`); err == nil {
		t.Fatal("it succeeded")
	}
	if of := need(st.node.Source("likes"))(t); of.Paused || strings.Contains(string(of.Config), "latest") {
		t.Errorf("it is left as %+v, %s", of, of.Config)
	}
	st.queue.setDown(nil)
	goesOn()
	st.eventually("it is read", through(1))
}
