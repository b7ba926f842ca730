// Package load runs a measured load on a countd server, and owns the command bench, which compares
// the counts with the answers. The command loads a server on another machine only with --yes. It
// asks before it changes a keyspace with rows, unless the command line names that keyspace.
//
// The package owns the pacing, the choice of ids and the histogram of latencies. It never decodes a
// good answer beyond its status, because the client shares its cores with the server that it
// measures. Invariant: every request that was due in the measured time is in the report, as an
// answer, an error or unsent. In an open loop, the latency of a request counts from the time at
// which it was due, not from the time at which the client sent it.
//
// Goroutines: Run starts one worker for each request in flight. It stops them when the time
// is over, when the requests are done or when ctx ends, and waits for them all. A worker
// that repeats an increment of unknown outcome may delay that by resendFor.
package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a Config.
const (
	// ConcurrencyMax bounds connections and histograms to what two cores and the default
	// limit of open files allow.
	ConcurrencyMax = 4096
	RateMax        = 1_000_000 // requests a second; no client of a few cores sends more
	PageMax        = 1000      // ids of one read, the API's bound
	BatchMax       = 10_000    // increments in one request; the API has the same bound
	DeadlineMax    = time.Minute
	PollMax        = 100  // users of one poll, the API's bound
	FolloweesMax   = 2000 // bound of one feed; the API takes more
)

// Kind is the kind of the requests.
type Kind string

// The kinds of load.
const (
	Read  Kind = "read"  // one row by GET
	Page  Kind = "page"  // Config.Page rows in one request
	Incr  Kind = "incr"  // Config.Batch increments in one request
	Mixed Kind = "mixed" // pages and increments; Config.ReadShare is the share of pages

	Poll    Kind = "poll"    // a poll of one user, by GET
	Polls   Kind = "polls"   // a poll of Config.Page users in one request
	Feed    Kind = "feed"    // one user follows other users, chosen anew each time, and has seen their posts
	Seen    Kind = "seen"    // one user has read the notices of the first of Config.Channels
	Clear   Kind = "clear"   // one user has seen the first of Config.Dots
	Publish Kind = "publish" // a notice for the first of Config.Channels

	Post     Kind = "post"     // one author publishes a post with the current time
	Timeline Kind = "timeline" // one user's newest Config.Page posts with their counts
)

var kinds = []Kind{Read, Page, Incr, Mixed, Poll, Polls, Feed, Seen, Clear, Publish, Post, Timeline}

// OfUsers reports whether requests are about unread numbers and timelines in any keyspace,
// not about rows of one keyspace.
func (k Kind) OfUsers() bool { return slices.Index(kinds, k) >= slices.Index(kinds, Poll) }

// Config configures a load.
type Config struct {
	Addr        *url.URL
	TLS         *tls.Config // for an Addr of https; nil for the system's authorities
	Token       string      // bearer token of the requests; "" for none
	Keyspace    string      // UnreadKeyspace for kinds whose OfUsers is true
	Column      string      // to which increments add 1
	Op          Kind
	Page        int           // ids of a page
	Batch       int           // increments of a request
	NoResults   bool          // do not request the new counts
	ReadShare   float64       // share of reads in Mixed, 0 … 1
	Consistency string        // consistency of reads: stale, bounded or linearizable; "" for the server's default
	Concurrency int           // maximum number of requests in flight
	Rate        float64       // requests a second in an open loop; 0 for a closed loop
	Duration    time.Duration // measured time; 0 to run until Requests are done
	Requests    int64         // in all; 0 to run for Duration
	Channels    []string      // channels of polls
	Dots        []string      // likewise
	Followees   int           // average number of followees of a feed
	Authors     uint64        // followees are drawn from 1 … Authors
	IDs         IDs
	Timeout     time.Duration // time of one request, after which the client gives up
	Deadline    time.Duration // sent to the server; 0 for the server's default
	// Once gives each worker a producer's name, and makes it repeat an increment of unknown
	// outcome until the outcome is known.
	Once bool
	// Memory samples the server's memory during the run.
	Memory bool
}

// Validate checks the config. Run does so too; a caller that has not read the ids yet
// may call it before.
func (c *Config) Validate() error {
	names := slices.Concat(c.Channels, c.Dots)
	switch {
	case !slices.Contains(kinds, c.Op):
		return fmt.Errorf("the op is one of %s, not %q", listed(kinds), c.Op)
	case c.Op == Polls && c.Page > PollMax:
		return fmt.Errorf("a poll is of 1 to %d users, not %d", PollMax, c.Page)
	// Requests do not escape names, and no server accepts such a name.
	case slices.ContainsFunc(names, func(name string) bool { return name == "" || url.QueryEscape(name) != name }):
		return fmt.Errorf("the name of a channel or dot is of a-z, 0-9 and _: one of %q is not", names)
	case (c.Op == Seen || c.Op == Publish) && len(c.Channels) == 0:
		return fmt.Errorf("the op %s needs a channel", c.Op)
	case c.Op == Clear && len(c.Dots) == 0:
		return errors.New("the op clear needs a dot")
	case c.Op == Feed && (c.Followees < 1 || c.Followees > FolloweesMax):
		return fmt.Errorf("a user follows 1 to %d on average, not %d", FolloweesMax, c.Followees)
	case c.Op == Feed && c.Authors < 1:
		return errors.New("feeds need at least one author")
	case c.Page < 1 || c.Page > PageMax:
		return fmt.Errorf("a page has 1 to %d ids, not %d", PageMax, c.Page)
	case c.Batch < 1 || c.Batch > BatchMax:
		return fmt.Errorf("a batch has 1 to %d increments, not %d", BatchMax, c.Batch)
	case !(c.ReadShare >= 0 && c.ReadShare <= 1):
		return fmt.Errorf("the share of reads lies between 0 and 1, not at %v", c.ReadShare)
	case !slices.Contains([]string{"", "stale", "bounded", "linearizable"}, c.Consistency):
		return fmt.Errorf("the consistency is one of stale, bounded and linearizable, not %q", c.Consistency)
	case c.Concurrency < 1 || c.Concurrency > ConcurrencyMax:
		return fmt.Errorf("1 to %d requests may be in flight, not %d", ConcurrencyMax, c.Concurrency)
	case !(c.Rate >= 0 && c.Rate <= RateMax):
		return fmt.Errorf("the rate lies between 0 and %d requests a second, not at %v", RateMax, c.Rate)
	case c.Duration < 0 || c.Requests < 0 || c.Duration == 0 && c.Requests == 0:
		return errors.New("a load needs a duration or a number of requests")
	case c.Timeout <= 0:
		return errors.New("a load needs a timeout")
	case c.Deadline < 0 || c.Deadline > DeadlineMax:
		return fmt.Errorf("the deadline lies between 0 and %v, not at %v", DeadlineMax, c.Deadline)
	}
	return c.IDs.validate()
}

// listed returns kinds with commas between.
func listed(kinds []Kind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// slots returns the maximum number of requests of the run.
func (c *Config) slots() int64 {
	slots := int64(math.MaxInt64)
	if c.Requests > 0 {
		slots = c.Requests
	}
	if c.Rate > 0 && c.Duration > 0 {
		slots = min(slots, int64(math.Ceil(c.Rate*c.Duration.Seconds())))
	}
	return slots
}

// Run runs the load and returns its report. It opens connections before the clock starts.
// When ctx ends, the report covers the time until then and comes with ctx's error. No other
// error comes with a report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var memory *memoryWatch
	if cfg.Memory {
		var err error
		if memory, err = watchMemory(&cfg); err != nil {
			return nil, err
		}
		defer memory.stop()
	}
	workers := make([]*worker, cfg.Concurrency)
	var each atomic.Uint64
	for i := range workers {
		workers[i] = newWorker(&cfg, &each, uint64(i))
		defer workers[i].close()
	}
	if err := connect(workers); err != nil {
		return nil, err
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	clock := newPacer(&cfg, time.Now())
	if cfg.Duration > 0 {
		limited, cancel = context.WithDeadline(ctx, clock.start.Add(cfg.Duration))
	}
	defer cancel()
	var running sync.WaitGroup
	for _, w := range workers {
		running.Go(func() { w.run(limited, clock) })
	}
	running.Wait()
	report := newReport(&cfg, workers, clock, time.Now())
	if memory != nil {
		report.Memory = memory.stop()
	}
	return report, ctx.Err()
}

// connect opens every worker's connection at once, so that none is opened in the measured
// time. It returns the first error.
func connect(workers []*worker) error {
	failures := make(chan error, len(workers))
	for _, w := range workers {
		go func() { failures <- w.connect() }()
	}
	var first error
	for range workers {
		if err := <-failures; err != nil && first == nil {
			first = err
		}
	}
	return first
}
