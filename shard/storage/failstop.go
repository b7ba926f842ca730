package storage

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
)

// FailStop holds the first failure of a group that it cannot go on from: its
// log, vote or snapshots could not be written or read back as they were
// written, or its disk hangs. From then on every store of the group answers
// with that failure, so that nothing more is acknowledged or voted for.
//
// It also ends what waits or takes long when the group is closed: see Interrupt.
type FailStop struct {
	notify      func(error)   // told once, in the goroutine that failed
	waits       func(error)   // called before each wait for a machine that lacks something
	ended       chan struct{} // closed with the first failure
	interrupted chan struct{} // closed by Interrupt
	interrupt   sync.Once
	waiting     atomic.Int32 // calls of wait

	mu struct {
		sync.Mutex
		err    error
		armed  bool // failures go to notify
		opened bool // Arm has succeeded
	}
}

// waitPause is the pause before something is tried again that the machine lacked something for.
const waitPause = 500 * time.Millisecond

// NewFailStop returns a FailStop that calls notify, once, for a failure after Arm, and waits
// before each pause of a write that has to wait for disk or file descriptors. Both run in the
// goroutine concerned, and must not wait for the replica.
func NewFailStop(notify, waits func(error)) *FailStop {
	return &FailStop{notify: notify, waits: waits, ended: make(chan struct{}), interrupted: make(chan struct{})}
}

// Interrupt ends all reads and writes of snapshots, those under way too, and all waits, with
// errs.ErrGroupClosed. raft's goroutines end soon after then, however large a snapshot they restore or
// write. The caller has disarmed it and is about to shut raft down.
func (f *FailStop) Interrupt() { f.interrupt.Do(func() { close(f.interrupted) }) }

// Usable returns why the group's files are not to be read or written, nil while they are.
func (f *FailStop) Usable() error {
	select {
	case <-f.interrupted:
		return errs.ErrGroupClosed
	default:
		return f.Failure()
	}
}

// wait waits before a call that failed with err is made again. It returns an error if it is not to
// be. If Interrupt ended it, the group has failed with that: raft goes on as if what waited had been
// stored, or restored, and answers nobody who waits for its main goroutine if that ends. Before Arm
// nothing waits, and the opening fails with err: its caller tries again, and holds locks meanwhile.
func (f *FailStop) wait(err error) error {
	f.mu.Lock()
	opened := f.mu.opened
	f.mu.Unlock()
	if !opened {
		return f.Fail(err)
	}
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

// Waits reports whether a call waits for disk or file descriptors.
func (f *FailStop) Waits() bool { return f.waiting.Load() > 0 }

// Fail records err if it is the first failure, and returns the first failure.
func (f *FailStop) Fail(err error) error {
	f.mu.Lock()
	first := f.mu.err == nil
	if first {
		f.mu.err = err
		close(f.ended)
	}
	err = f.mu.err
	tell := first && f.mu.armed
	f.mu.Unlock()
	if tell {
		f.notify(err)
	}
	return err
}

// Failed is closed with the first failure.
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

// Arm ends the opening of a group: later failures go to notify, one that came
// before is returned.
func (f *FailStop) Arm() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.armed = f.mu.err == nil
	f.mu.opened = f.mu.armed
	return f.mu.err
}

// Disarm ends the notices: close itself returns the errors of closing a group.
func (f *FailStop) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.armed = false
}

// raft panics, in a goroutine of its own where nobody can recover, when it
// cannot save its term or read back a committed entry. The two types below wrap
// the stores for raft: once the group has failed they end the calling goroutine
// instead. Its deferred calls run (it refuses the RPC in hand, a leader stops its
// replication), raft.Shutdown can still wait for it, and the notified function
// decides how the process ends.

// NewEndingLog returns the log that raft is given.
func NewEndingLog(log raft.LogStore, stop *FailStop) raft.LogStore { return endingLog{log, stop} }

// NewEndingVotes returns the store of term and vote that raft is given.
func NewEndingVotes(votes raft.StableStore, stop *FailStop) raft.StableStore {
	return endingStable{votes, stop}
}

type endingLog struct {
	raft.LogStore
	stop *FailStop
}

// IsMonotonic keeps the method that embedding the interface would hide.
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
