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

// FailStop records the first failure after which a group cannot continue. Examples are a failed
// write of log, vote or snapshot, damaged bytes, and a hanging disk. From then on every store of
// the group returns that failure, so that the group acknowledges nothing and casts no vote.
//
// When the group closes, FailStop also interrupts waits and long operations: see Interrupt.
type FailStop struct {
	notify      func(error)   // called once, in the goroutine that failed
	waits       func(error)   // called in Wait before each pause
	ended       chan struct{} // closed by the first failure
	interrupted chan struct{} // closed by Interrupt
	interrupt   sync.Once
	waiting     atomic.Int32 // number of running calls of Wait

	mu struct {
		sync.Mutex
		err    error
		told   bool // notify was or will be called for err
		armed  bool // a failure calls notify
		opened bool // Arm has succeeded
	}
}

// waitPause is the pause before the retry of an operation for which disk space or file descriptors
// were missing.
const waitPause = 500 * time.Millisecond

// NewFailStop returns a FailStop. It calls notify once, for the first failure after Arm. It calls
// waits before each pause of a write that waits for disk space or file descriptors. Both run in
// the failing or waiting goroutine, and must not wait for the replica.
func NewFailStop(notify, waits func(error)) *FailStop {
	return &FailStop{notify: notify, waits: waits, ended: make(chan struct{}), interrupted: make(chan struct{})}
}

// Interrupt makes running and later waits, and reads and writes of snapshots, fail with
// errs.ErrGroupClosed. So raft's goroutines end soon, even amid a large snapshot. The caller calls
// Disarm before Interrupt, and shuts raft down after it.
func (f *FailStop) Interrupt() { f.interrupt.Do(func() { close(f.interrupted) }) }

// Usable returns an error if the group's files must not be read or written any more.
func (f *FailStop) Usable() error {
	select {
	case <-f.interrupted:
		return errs.ErrGroupClosed
	default:
		return f.Failure()
	}
}

// Wait pauses before the retry of a call that failed with err. It returns an error if the call must
// not be retried. After Interrupt, Wait fails the group with errs.ErrGroupClosed, because raft
// would ignore a mere error and continue. (Ending raft's main goroutine instead would leave its
// callers without an answer.) Before Arm, Wait does not pause but fails the group with err, because
// the caller that opens the group holds locks and retries itself.
func (f *FailStop) Wait(err error) error {
	f.mu.Lock()
	if !f.mu.opened { // Arm has not run, and cannot run before failLocked, because the lock is held
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

// Waits reports whether a call now waits for disk space or file descriptors.
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

// failLocked is Fail for a caller that holds mu. notify reports whether the caller must call
// f.notify. A disk failure replaces an earlier ErrGroupClosed, which means only that Interrupt
// ended a wait.
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

// Untold returns the failure if notify was not called for it. It never returns an ErrGroupClosed.
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

// Arm marks a group as opened. It returns an earlier failure; later failures call notify.
func (f *FailStop) Arm() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.armed = f.mu.err == nil
	f.mu.opened = f.mu.armed
	return f.mu.err
}

// Disarm stops the calls of notify, because a caller that closes the group gets the errors itself.
func (f *FailStop) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.armed = false
}

// If raft cannot save its term or read a committed entry, it panics in its own goroutine, where no
// caller can recover. So once the group has failed, the two wrappers below end the calling
// goroutine instead. Its deferred calls still run: raft refuses the current RPC, and a leader
// stops its replication. raft.Shutdown can still wait for that goroutine, and notify decides how
// the process ends.

// NewEndingLog wraps the log for raft, as described above.
func NewEndingLog(log raft.LogStore, stop *FailStop) raft.LogStore { return endingLog{log, stop} }

// NewEndingVotes wraps the store of term and vote for raft, as described above.
func NewEndingVotes(votes raft.StableStore, stop *FailStop) raft.StableStore {
	return endingStable{votes, stop}
}

type endingLog struct {
	raft.LogStore
	stop *FailStop
}

// IsMonotonic repeats the method of Log, because the embedded interface lacks it.
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
