package nats

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// newQueue returns a stream of a real server.
func newQueue(t testing.TB) (*brokertest.Queue, jetstream.JetStream) {
	t.Helper()
	return queueOf(t, proctest.StartNATS(t))
}

// queueOf returns a stream of a server. access holds the options of the test's own client.
func queueOf(t testing.TB, server *proctest.Server, access ...nats.Option) (*brokertest.Queue, jetstream.JetStream) {
	t.Helper()
	url := "nats://" + server.Addr
	conn, err := nats.Connect(url, append(access, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(must.BecomeMax))
	if err != nil {
		t.Fatal(err)
	}
	makeStream(t, js, "LIKES", "likes")
	makeStream(t, js, "DEAD", "LIKES.dead", "dead.likes")
	written := 0
	return &brokertest.Queue{
		Config:  "name: likes\ntype: nats\nurl: " + url + "\nstream: LIKES\nbatch: {messages: 100, linger: 1ms}\n",
		Open:    func(c *source.Config, access source.Access) (source.Broker, error) { return Open(c, access) },
		Restart: func(t *testing.T) { server.Restart(t) },
		Write: func(t *testing.T, values ...string) {
			for _, v := range values {
				written++
				id := strconv.Itoa(written) // so that a message that is sent twice is stored once
				must.Become(t, "a message is written", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), requestMax)
					defer cancel()
					_, err := js.Publish(ctx, "likes", []byte(v), jetstream.WithMsgID(id))
					return err == nil
				})
			}
		},
		Letters: func(t *testing.T) (all []string) {
			stream, err := js.Stream(t.Context(), "DEAD")
			if err != nil {
				t.Fatal(err)
			}
			for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
				m, err := stream.GetMsg(t.Context(), seq)
				if err != nil || m.Header.Get("Countd-Reason") == "" || m.Header.Get("Countd-Position") == "" {
					t.Errorf("letter %+v, %v", m, err)
					continue
				}
				all = append(all, string(m.Data))
			}
			return all
		},
	}, js
}

func makeStream(t testing.TB, js jetstream.JetStream, name string, subjects ...string) {
	t.Helper()
	must.Become(t, "there is a stream", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), requestMax)
		defer cancel()
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects, Duplicates: time.Minute})
		return err == nil
	})
}

func TestOnce(t *testing.T) {
	t.Parallel()
	q, _ := newQueue(t)
	brokertest.Once(t, q)
}

func TestLostMessages(t *testing.T) {
	t.Parallel()
	like := brokertest.Like(1, 1)
	for name, c := range map[string]struct {
		harm func(t *testing.T, js jetstream.JetStream, write func(*testing.T, ...string))
		want string
	}{
		"purged": {func(t *testing.T, js jetstream.JetStream, write func(*testing.T, ...string)) {
			write(t, like, like, like)
			stream, _ := js.Stream(t.Context(), "LIKES")
			if err := stream.Purge(t.Context(), jetstream.WithPurgeKeep(1)); err != nil {
				t.Fatal(err)
			}
		}, "messages 3 to 4 were removed"},
		"a gap": {func(t *testing.T, js jetstream.JetStream, write func(*testing.T, ...string)) {
			write(t, like, like, like)
			stream, _ := js.Stream(t.Context(), "LIKES")
			for _, seq := range []uint64{3, 4} {
				if err := stream.DeleteMsg(t.Context(), seq); err != nil {
					t.Fatal(err)
				}
			}
		}, "messages 3 to 4 were removed"},
		"made anew": {func(t *testing.T, js jetstream.JetStream, write func(*testing.T, ...string)) {
			if err := js.DeleteStream(t.Context(), "LIKES"); err != nil {
				t.Fatal(err)
			}
			makeStream(t, js, "LIKES", "likes")
			write(t, like, like, like)
		}, "not the one that was read before"},
		"deleted": {func(t *testing.T, js jetstream.JetStream, write func(*testing.T, ...string)) {
			if err := js.DeleteStream(t.Context(), "LIKES"); err != nil {
				t.Fatal(err)
			}
		}, "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			q, js := newQueue(t)
			shards := sinktest.New(2, nil)
			q.Write(t, like, like)
			r := q.Start(t, shards)
			r.Counts(t, shards, 2)
			must.Become(t, "all shards have moved", func() bool { return shards.At(source.Position{Lo: 3}) })
			r.Stop()
			c.harm(t, js, q.Write)
			r = q.Start(t, shards)
			r.Stalls(t, c.want)
			if got := shards.Sums()[1]; got != 2 {
				t.Errorf("row 1 is %d after messages were lost", got)
			}
		})
	}
}

// TestRecreatedWhileRead: a running reader notices that the stream was created again.
func TestRecreatedWhileRead(t *testing.T) {
	t.Parallel()
	q, js := newQueue(t)
	shards := sinktest.New(2, nil)
	q.Write(t, brokertest.Like(1, 1))
	r := q.Start(t, shards)
	r.Counts(t, shards, 1)
	if err := js.DeleteStream(t.Context(), "LIKES"); err != nil {
		t.Fatal(err)
	}
	makeStream(t, js, "LIKES", "likes")
	q.Write(t, brokertest.Like(1, 1), brokertest.Like(1, 1))
	r.Stalls(t, "not the one that was read before")
	if got := shards.Sums()[1]; got != 1 {
		t.Errorf("row 1 is %d", got)
	}
}

// newDisk returns a stream and two functions: save copies the disk of its server, and lose puts the
// copy back.
func newDisk(t *testing.T) (q *brokertest.Queue, save, lose func(*testing.T)) {
	t.Helper()
	dir, copied := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "copy")
	server := proctest.StartNATS(t, "-sd", dir)
	q, _ = queueOf(t, server)
	move := func(to, from string) func(*testing.T) {
		return func(t *testing.T) {
			server.Kill()
			brokertest.Copy(t, to, from)
			server.Restart(t)
		}
	}
	return q, move(copied, dir), move(dir, copied)
}

func TestRegrown(t *testing.T) {
	t.Parallel()
	q, save, lose := newDisk(t)
	brokertest.Regrown(t, q, save, lose)
}

// TestRemovedMark: if the last counted message was deleted or purged, no message counts as lost.
func TestRemovedMark(t *testing.T) {
	t.Parallel()
	q, js := newQueue(t)
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	for i, remove := range []func(jetstream.Stream, uint64) error{
		func(s jetstream.Stream, last uint64) error { return s.DeleteMsg(t.Context(), last) },
		func(s jetstream.Stream, _ uint64) error { return s.Purge(t.Context()) },
		func(jetstream.Stream, uint64) error { return nil },
	} {
		r := q.Start(t, shards)
		q.Write(t, like, like)
		r.Counts(t, shards, int64(2*i+2))
		must.Become(t, "all shards have moved", func() bool { return shards.At(source.Position{Lo: uint64(2*i + 3)}) })
		r.Stop()
		stream, err := js.Stream(t.Context(), "LIKES")
		if err == nil {
			err = remove(stream, uint64(2*i+2))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestServerThatLostMessages: a server loses messages that it had not written to disk, as after a
// power failure. Then more messages than the lost ones are written. The reader stalls and counts
// none of them.
func TestServerThatLostMessages(t *testing.T) {
	t.Parallel()
	q, save, lose := newDisk(t)
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	r := q.Start(t, shards)
	count := func(messages int, want int64) {
		q.Write(t, slices.Repeat([]string{like}, messages)...)
		r.Counts(t, shards, want)
	}
	count(3, 3)
	save(t)
	count(2, 5)
	lose(t)
	r.Stalls(t, "position 6 is beyond")
	q.Write(t, like, like, like, like)
	tries := r.Status().Errors["stalled"]
	must.Become(t, "it tries again", func() bool { return r.Status().Errors["stalled"] > tries+1 || shards.Sums()[1] != 5 })
	if got := shards.Sums()[1]; got != 5 {
		t.Errorf("row 1 is %d after messages were lost", got)
	}
}

func TestRefusedStreams(t *testing.T) {
	t.Parallel()
	q, js := newQueue(t)
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "LIKES", Subjects: []string{"likes", "LIKES.>"}, Duplicates: time.Minute}); err != nil {
		t.Fatal(err)
	}
	q.Start(t, sinktest.New(1, nil)).Stalls(t, "dead-letters: subject LIKES.dead is of stream LIKES")
	if err := js.DeleteStream(t.Context(), "LIKES"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LIKES", Subjects: []string{"likes"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	q.Start(t, sinktest.New(1, nil)).Stalls(t, "has retention workqueue")
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.*", "a.b", true}, {"a.>", "a.b.c", true}, {">", "a", true},
		{"a.>", "a", false}, {"a.*", "a.b.c", false}, {"a", "a.b", false}, {"a.b", "a", false},
	} {
		if got := covers(c.pattern, c.subject); got != c.want {
			t.Errorf("covers(%q, %q) = %v", c.pattern, c.subject, got)
		}
	}
}

// TestLargeLetter: a dead letter that its stream refuses stalls the source.
func TestLargeLetter(t *testing.T) {
	t.Parallel()
	q, js := newQueue(t)
	large := strings.Repeat("x", 1<<20-50) // the server accepts it, but not with the headers of a letter
	q.Write(t, large)
	q.Start(t, sinktest.New(1, nil)).Stalls(t, "set on-error: skip")
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"LIKES.dead"}, Duplicates: time.Minute, MaxMsgSize: 500}); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "LIKES"); err != nil {
		t.Fatal(err)
	}
	makeStream(t, js, "LIKES", "likes")
	q.Write(t, large[:1000])
	q.Start(t, sinktest.New(1, nil)).Stalls(t, "set on-error: skip")
}

// TestClosedConnection: a reader fails once its connection is closed, even if its broker has opened
// another one.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	q, _ := newQueue(t)
	q.Write(t, brokertest.Like(1, 1))
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	r, err := b.Read(t.Context(), 0, source.Position{Lo: 1}, source.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b.mu.conn.Close()
	if _, _, err := b.Bounds(t.Context(), 0); err != nil {
		t.Fatalf("no other connection: %v", err)
	}
	must.Become(t, "it fails", func() bool {
		_, err := r.Next(t.Context(), 10)
		return err != nil
	})
}

func TestBounded(t *testing.T) {
	t.Parallel()
	q, _ := newQueue(t)
	brokertest.Bounded(t, q, func(r source.Reader) int { return r.(*reader).buffered.Bytes() })
}

// TestDeletedTail: if the last message was removed before it was read, the source stalls and names
// a seek. The source does not stall while a message is only waiting to be read.
func TestDeletedTail(t *testing.T) {
	t.Parallel()
	q, js := newQueue(t)
	like := brokertest.Like(1, 1)
	c := sinktest.New(1, nil)
	q.Write(t, like)
	r := q.Start(t, c)
	r.Counts(t, c, 1)
	r.Stop()
	q.Write(t, like, like)
	stream, err := js.Stream(t.Context(), "LIKES")
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{2, 3} {
		if err := stream.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	q.Start(t, c).Stalls(t, "messages 2 to 3 were removed before they were read; seek to 4")
}

// TestStreamsThatForget: a source refuses a stream whose settings let it remove messages from the
// middle.
func TestStreamsThatForget(t *testing.T) {
	t.Parallel()
	q, js := newQueue(t)
	for name, of := range map[string]jetstream.StreamConfig{
		"max_msgs_per_subject": {MaxMsgsPerSubject: 1}, "allow_rollup_hdrs": {AllowRollup: true}, "allow_msg_ttl": {AllowMsgTTL: true},
	} {
		of.Name, of.Subjects = "F_"+name, []string{name}
		if _, err := js.CreateStream(t.Context(), of); err != nil {
			t.Fatal(err)
		}
		forgets := *q
		forgets.Config = strings.Replace(q.Config, "stream: LIKES", "stream: "+of.Name, 1)
		forgets.Start(t, sinktest.New(1, nil)).Stalls(t, "has "+name)
	}
}
