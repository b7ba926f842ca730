package storage

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
)

// FailStop records the first failure after which a group cannot continue: its log, vote or
// snapshots could not be written, or were read back differently, or its disk hangs. From then on
// every store of the group returns that failure, so that the group acknowledges nothing and casts
// no vote.
//
// It also interrupts waits and long operations when the group closes: see Interrupt.
type FailStop struct {
	notify      func(error)   // called once, in the goroutine that failed
	waits       func(error)   // called before each pause in Wait
	ended       chan struct{} // closed by the first failure
	interrupted chan struct{} // closed by Interrupt
	interrupt   sync.Once
	waiting     atomic.Int32 // calls of Wait now

	mu struct {
		sync.Mutex
		err    error
		told   bool // notify is called for err
		armed  bool // failures are reported to notify
		opened bool // Arm has succeeded
	}
}

// waitPause is the pause before a retry, for an operation that lacked disk or file descriptors.
const waitPause = 500 * time.Millisecond

// NewFailStop returns a FailStop. It calls notify once, for the first failure after Arm. It calls
// waits before each pause of a write that waits for disk or file descriptors. Both run in the
// goroutine concerned and must not wait for the replica.
func NewFailStop(notify, waits func(error)) *FailStop {
	return &FailStop{notify: notify, waits: waits, ended: make(chan struct{}), interrupted: make(chan struct{})}
}

// Interrupt ends all waits and all reads and writes of snapshots, running ones too, with
// errs.ErrGroupClosed. So raft's goroutines end soon, however large a snapshot they read or write.
// Before that, the caller calls Disarm; after it, the caller shuts raft down.
func (f *FailStop) Interrupt() { f.interrupt.Do(func() { close(f.interrupted) }) }

// Usable returns why the group's files must not be read or written, or nil.
func (f *FailStop) Usable() error {
	select {
	case <-f.interrupted:
		return errs.ErrGroupClosed
	default:
		return f.Failure()
	}
}

// Wait pauses before the retry of a call that failed with err. It returns an error if the call
// must not be retried. After Interrupt the group fails with that error, because raft continues as
// if the call had succeeded. (If raft's main goroutine ended instead, its callers would get no
// answer.) Before Arm, Wait does not pause: the opening fails with err, because its caller holds
// locks and retries itself.
func (f *FailStop) Wait(err error) error {
	f.mu.Lock()
	if !f.mu.opened { // Arm has not run: check and failure share one lock, so that Arm cannot run in between
		err, _ = f.failLocked(err)
		f.mu.Unlock()
		return err
	}
	f.mu.Unlock()
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	f.waits(err)
	select {
	case <-time.After(waitPause):
		return nil
	case <-f.interrupted:
		return f.Fail(errs.ErrGroupClosed)
	case <-f.ended:
		return f.Failure()
	}
}

// Waits reports whether a call waits for disk or file descriptors now.
func (f *FailStop) Waits() bool { return f.waiting.Load() > 0 }

// Fail records err if it is the first failure, and returns the first failure.
func (f *FailStop) Fail(err error) error {
	f.mu.Lock()
	err, notify := f.failLocked(err)
	f.mu.Unlock()
	if notify {
		f.notify(err)
	}
	return err
}

// failLocked is Fail for a caller that holds mu. It reports whether the caller must notify. A failure
// of the disk takes the place of ErrGroupClosed, which says only that a wait was ended.
func (f *FailStop) failLocked(err error) (first error, notify bool) {
	switch {
	case f.mu.err == nil:
		close(f.ended)
	case errors.Is(f.mu.err, errs.ErrGroupClosed) && !errors.Is(err, errs.ErrGroupClosed):
	default:
		return f.mu.err, false
	}
	f.mu.err, f.mu.told = err, f.mu.armed
	return err, f.mu.armed
}

// Untold returns the failure if notify was not called for it, and nil for an ErrGroupClosed.
func (f *FailStop) Untold() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.told || errors.Is(f.mu.err, errs.ErrGroupClosed) {
		return nil
	}
	return f.mu.err
}

// Failed returns a channel that the first failure closes.
func (f *FailStop) Failed() <-chan struct{} { return f.ended }

// Failure returns the first failure, or nil.
func (f *FailStop) Failure() error {
	select {
	case <-f.ended:
	default:
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.err
}

// Arm ends the opening of a group. It returns a failure that came before it; later failures go to
// notify.
func (f *FailStop) Arm() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.armed = f.mu.err == nil
	f.mu.opened = f.mu.armed
	return f.mu.err
}

// Disarm stops the notifications: a group that closes returns its errors itself.
func (f *FailStop) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.armed = false
}

// raft panics in its own goroutines, where nobody can recover, if it cannot save its term or read a
// committed entry. The two types below wrap the stores for raft. Once the group has failed, they
// end the calling goroutine instead. Its deferred calls still run: raft refuses the RPC in hand,
// and a leader stops its replication. raft.Shutdown can still wait for that goroutine, and notify
// decides how the process ends.

// NewEndingLog wraps the log for raft.
func NewEndingLog(log raft.LogStore, stop *FailStop) raft.LogStore { return endingLog{log, stop} }

// NewEndingVotes wraps the store of term and vote for raft.
func NewEndingVotes(votes raft.StableStore, stop *FailStop) raft.StableStore {
	return endingStable{votes, stop}
}

type endingLog struct {
	raft.LogStore
	stop *FailStop
}

// IsMonotonic forwards the method, which the embedded interface lacks.
func (endingLog) IsMonotonic() bool { return true }

func (l endingLog) GetLog(index uint64, entry *raft.Log) error {
	err := l.LogStore.GetLog(index, entry)
	if err != nil && l.stop.Failure() != nil {
		runtime.Goexit()
	}
	return err
}

type endingStable struct {
	raft.StableStore
	stop *FailStop
}

func (s endingStable) SetUint64(key []byte, value uint64) error {
	err := s.StableStore.SetUint64(key, value)
	if err != nil && s.stop.Usable() != nil {
		runtime.Goexit()
	}
	return err
}
