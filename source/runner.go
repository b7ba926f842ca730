package source

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/countd/countd/source/sink"
)

// Tests shorten these times of a runner.
var defaultTimes = times{
	backoffMin: 100 * time.Millisecond,
	backoffMax: 30 * time.Second,
	tick:       time.Second,
	meet:       30 * time.Second,
	late:       15 * time.Second,
	call:       30 * time.Second,
	silence:    2 * time.Minute,
}

type times struct {
	backoffMin, backoffMax time.Duration
	tick                   time.Duration // between calls of session.tick
	meet                   time.Duration // between reads of all shards' positions while the queue is idle
	late                   time.Duration // between reads of the shards' positions while a shard does not answer
	call                   time.Duration // bounds a call of the broker or the Sink, except Again
	silence                time.Duration // longest time without progress of Again; a walsender may send nothing for wal_sender_timeout / 2 while it skips changes
}

// RunnerConfig configures a runner, or all runners of a consumer. Late, Logger, Counts, Rejected and Ending are
// optional.
type RunnerConfig struct {
	Number    uint64 // number of the source
	Source    *Config
	Partition uint32
	// Late is set for a partition that was added after Begin. Such a partition begins at its first
	// message.
	Late   bool
	Broker Broker
	Sink   sink.Sink
	Logger *slog.Logger
	// Counts returns the Counts of a partition. If it is nil, each runner has its own Counts.
	Counts func(partition uint32) *Counts
	// Rejected records refusals, which are sorted by position; nil to record none.
	Rejected func(ctx context.Context, partition uint32, all []sink.Refusal) error
	// Closing Ending makes the runner apply its batch, move all shards to one position, and end.
	// If Ending is nil, only the context ends the runner.
	Ending <-chan struct{}
}

// Runner reads one partition. Several runners may read the same partition at once, because each
// shard applies an op only once.
//
// The goroutine of Run does everything except fetching. Each session starts a goroutine that
// fetches messages ahead. The session waits for that goroutine before it ends.
type Runner struct {
	cfg      RunnerConfig
	times    times
	status   status
	decoder  *Decoder
	reported error      // last logged error
	start    sink.Start // the recorded start that the last session read

	decided   decided
	rejects   rejects
	truncated truncated
}

// NewRunner returns a runner. Run starts it.
func NewRunner(cfg RunnerConfig) *Runner {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runner{cfg: cfg, times: defaultTimes, decoder: NewDecoder(cfg.Source)}
	r.rejects.ids = map[string]bool{}
	if r.status.counts = (&Counts{}); cfg.Counts != nil {
		r.status.counts = cfg.Counts(cfg.Partition)
	}
	r.status.mu.counted, _ = r.status.counts.Load()
	r.status.mu.ok = time.Now()
	r.status.mu.Status = Status{State: StateRunning, Errors: map[string]uint64{}, left: -1}
	return r
}

// Status returns the state of the partition.
func (r *Runner) Status() Status { return r.status.get() }

// Run reads until ctx ends, Ending is closed, or the source is paused or deleted. After an error it
// waits and starts a new session at the positions of the shards. If a session has not raised the
// lowest position of the shards, the next wait is longer.
func (r *Runner) Run(ctx context.Context) {
	wait := r.times.backoffMin
	var reached Position
	for {
		low, err := r.session(ctx)
		if ctx.Err() != nil || errors.Is(err, sink.ErrStopped) || errors.Is(err, errEnding) {
			return
		}
		r.report(err)
		if reached.Less(low) || errors.Is(err, sink.ErrMoved) {
			wait = r.times.backoffMin
		}
		if reached.Less(low) {
			reached = low
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cfg.Ending:
			return
		case <-time.After(wait/2 + rand.N(wait/2+1)):
		}
		wait = min(2*wait, r.times.backoffMax)
	}
}

// report sets the state after a session failed, and logs a new error.
func (r *Runner) report(err error) {
	state, reason := StateRunning, reasonBroker
	_, is := errors.AsType[*StalledError](err)
	if is {
		state, reason = StateStalled, reasonStalled
	}
	moved := errors.Is(err, sink.ErrMoved)
	r.status.set(func() {
		if moved {
			r.status.mu.Errors[reasonMoved]++
			return
		}
		r.status.mu.State, r.status.mu.Reason = state, err.Error()
		r.status.mu.Errors[reason]++
	})
	if moved {
		return
	}
	if r.reported == nil || r.reported.Error() != err.Error() {
		r.cfg.Logger.Warn("a source does not go on", "source", r.cfg.Source.Name, "partition", r.cfg.Partition,
			"stalled", is, "err", err)
	}
	r.reported = err
}
