package sources

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// TestFiles: a source with a missing or wrong password stalls and reports the reason. It continues
// once the password file is correct. It also notices a change of the password while it reads.
func TestFiles(t *testing.T) {
	t.Parallel()
	st := start(t, 3)
	file := filepath.Join(st.queue.secrets, "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stalls := func(reason string) {
		t.Helper()
		of := st.eventually("it stalls: "+reason, func(of *Source) bool {
			return of.State == source.StateStalled && of.Partitions[0].State == source.StateStalled && strings.Contains(of.Partitions[0].Reason, reason)
		})
		if of.Partitions[0].Node != "n1" {
			t.Errorf("stalled it is %+v", of)
		}
		if n, is := st.metric("countd_source_state", source.StateStalled); !is || n < 1 {
			t.Errorf("countd_source_state of stalled partitions is %v, %v", n, is)
		}
		if n, is := st.metric("countd_source_errors_total", "stalled"); !is || n < 1 {
			t.Errorf("countd_source_errors_total of stalls is %v, %v", n, is)
		}
	}
	st.queue.set(func() { st.queue.password = "first" })
	st.queue.add(1, like(1))
	need(st.put(`,"username":"u","password-file":"password"`))(t)
	stalls("cannot read password-file")
	write("wrong")
	stalls("wrong password")
	write("first")
	st.eventually("it is read", through(1))
	st.queue.set(func() { st.queue.password = "second" })
	stalls("wrong password")
	write("second")
	st.queue.add(2, like(1))
	st.eventually("it is read", through(2))
	if got := st.count(1); got != 2 {
		t.Errorf("row 1 is %d", got)
	}
}

// TestNoSecretsDir: a node without a directory for files refuses a source that names a file, and
// names the flag. If another node has accepted the source, the source stalls on this node for that
// reason.
func TestNoSecretsDir(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	st.queue.secrets = ""
	st.secrets = source.Secrets{}
	const file = `,"password-file":"p"`
	_, err := st.put(file)
	if of, is := errors.AsType[*errs.ArgumentError](err); !is || of.Field != "password-file" || !strings.Contains(of.Problem, "--source-secrets-dir") {
		t.Errorf("a file is taken: %v", err)
	}
	need(st.node.CreateSource(ctx, "likes", []byte(strings.Replace(likes, "{", `{"name":"likes",`, 1)+file+"}"), false))(t)
	st.eventually("it stalls", func(of *Source) bool {
		return of.State == source.StateStalled && strings.Contains(of.Partitions[0].Reason, "--source-secrets-dir")
	})
}

// TestFilesHang: while a stat or a read of a source's password file hangs,
//
//  1. another source can be created and read;
//  2. the node lists all sources, and its calls leave few hanging threads;
//  3. a source whose password was not read yet is stalled, in the metrics too;
//  4. the source can be deleted, and Sources can be closed.
func TestFilesHang(t *testing.T) {
	for name, at := range map[string]struct {
		call string
		time int32
	}{"first look": {"look", 1}, "open": {"open", 1}, "another look": {"look", 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hung, back := make(chan struct{}), make(chan struct{})
			var times, hanging atomic.Int32
			st, ctx := start(t, 1), t.Context()
			st.queue.add(0, like(1))
			st.queue.set(func() {
				st.queue.hangs = func(of string, cfg *source.Config) {
					if cfg.Name != "stuck" || !isClosed(hung) && (of != at.call || times.Add(1) != at.time) {
						return
					}
					if hanging.Add(1) == 1 {
						close(hung)
					}
					<-back
				}
			})
			of := need(st.node.CreateSource(ctx, "stuck", []byte(strings.Replace(likes, "{", `{"name":"stuck",`, 1)+"}"), false))(t)
			need(st.node.sink.Start(ctx, of.Number, 0, sink.Start{Identity: "queue"}))(t)
			<-hung
			need(st.put(""))(t)
			st.eventually("another is read", through(1))
			listed := make(chan error, 2*connectCallsMax)
			for range cap(listed) {
				go func() {
					_, err := st.List(ctx)
					listed <- err
				}()
			}
			for range cap(listed) {
				select {
				case err := <-listed:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(must.BecomeMax):
					close(back)
					t.Fatal("the list hangs")
				}
			}
			if n := hanging.Load(); n > 1+connectCallsMax {
				t.Errorf("%d calls hang", n)
			}
			if at.time == 1 {
				for {
					got := st.report()[0]
					if n, is := st.metric("countd_source_state", source.StateStalled); is && n == 1 && len(got.Partitions) == 1 && got.Partitions[0].Reason == errOpening.Error() {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
			if err := st.Delete(ctx, "stuck"); err != nil {
				t.Error(err)
			}
			st.Close(ctx)
			st.hung = true
			close(back)
			st.stopped = nil // st is closed already
		})
	}
}

// TestAnotherFileSystem: a source that names a file on one file system begins, although another
// file system hangs, and many calls hang with it.
func TestAnotherFileSystem(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	var hanging atomic.Int32
	back := make(chan struct{})
	const hung = "hung"
	st.queue.set(func() {
		st.queue.hangs = func(_ string, cfg *source.Config) {
			if cfg.PasswordFile == hung {
				hanging.Add(1)
				<-back
			}
		}
	})
	st.hung = true
	defer close(back)
	begins := func(ctx context.Context, file string) error {
		if err := os.WriteFile(filepath.Join(st.queue.secrets, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := st.Put(ctx, "likes", []byte(likes+`,"start":"latest","password-file":"`+file+`"}`))
		return err
	}
	for hanging.Load() < connectCallsMax {
		late, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if err := begins(late, hung); err == nil {
			t.Fatal("it begins")
		}
		cancel()
	}
	if err := begins(ctx, "other"); err != nil {
		t.Error(err)
	}
}

// TestOpenedLate: if a broker opens only after its source was paused, the reader closes the broker
// without reading.
func TestOpenedLate(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	hung, back := make(chan struct{}), make(chan struct{})
	st.queue.set(func() {
		st.queue.hangs = func(call string, _ *source.Config) {
			if call == "open" {
				close(hung)
				<-back
			}
		}
	})
	of := need(st.node.CreateSource(ctx, "likes", []byte(strings.Replace(likes, "{", `{"name":"likes",`, 1)+"}"), false))(t)
	<-hung
	st.mu.Lock()
	r := st.mu.readers[of.Number]
	st.mu.Unlock()
	need(st.node.SetPaused(ctx, of, true, false))(t)
	<-r.ending
	st.hung = true
	close(back)
	<-r.ended
	must.Become(t, "the broker is closed", func() bool { return st.queue.opened() == 0 }) // if the broker opens after openEnding, it is closed later
	st.queue.set(func() {
		if st.queue.lists > 0 {
			t.Errorf("it was listed %d times", st.queue.lists)
		}
	})
}

// TestNeverListed: if a broker has never listed its partitions, the source still reports one
// partition, with the reason. So the metrics show its state.
func TestNeverListed(t *testing.T) {
	t.Parallel()
	st := start(t, 3)
	for _, down := range []struct {
		err   error
		state string
	}{{errors.New("connection refused"), source.StateRunning}, {source.Stalled("topic likes is missing"), source.StateStalled}} {
		st.queue.setDown(down.err)
		need(st.put(""))(t)
		of := st.eventually("it says why", func(of *Source) bool {
			return of.State == down.state && len(of.Partitions) == 1 && strings.Contains(of.Partitions[0].Reason, down.err.Error())
		})
		if n, is := st.metric("countd_source_state", down.state); !is || n != 1 {
			t.Errorf("%+v: countd_source_state is %v, %v", of, n, is)
		}
	}
	st.queue.setDown(nil)
	st.queue.add(2, like(1))
	st.eventually("it is read", through(1))
}
