// Package load runs a measured load on a countd server, and owns the command bench. The command can
// also compare the counts with the answers. It runs against a server on another machine only with
// --yes. It asks before it changes a keyspace with rows, unless the command line names a keyspace.
//
// The package owns the pacing, the choice of ids and the histogram of latencies. It never decodes
// the body of an answer with status 200, because the client may share its cores with the server
// that it measures. Invariant: every request that was due in the measured time is in the report, as
// an answer, an error or unsent. In an open loop, the latency of a request counts from the time at
// which it was due, not from the time at which the client sent it.
//
// Goroutines: Run starts Config.Concurrency workers. They stop when the time is over, when the
// requests are done or when ctx ends, and Run waits for all of them. A worker that repeats an
// increment of unknown outcome may delay the end of Run by resendFor.
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
	// ConcurrencyMax bounds the connections and the histograms. Two cores and the default limit of
	// open files do not allow more.
	ConcurrencyMax = 4096
	RateMax        = 1_000_000 // requests a second; a client with a few cores cannot send more
	PageMax        = 1000      // ids in one read; the API has the same bound
	BatchMax       = 10_000    // increments in one request; the API has the same bound
	DeadlineMax    = time.Minute
	PollMax        = 100  // users in one poll; the API has the same bound
	FolloweesMax   = 2000 // followees of one feed; the API allows more
)

// Kind is the kind of requests in a load.
type Kind string

// The kinds of load.
const (
	Read  Kind = "read"  // reads one row with GET
	Page  Kind = "page"  // reads Config.Page rows in one request
	Incr  Kind = "incr"  // Config.Batch increments in one request
	Mixed Kind = "mixed" // both Page and Incr requests; Config.ReadShare is the share of Page

	Poll    Kind = "poll"    // polls for one user with GET
	Polls   Kind = "polls"   // polls for Config.Page users in one request
	Feed    Kind = "feed"    // sets the followees of one user to newly drawn users, and marks their posts as seen
	Seen    Kind = "seen"    // marks the notices of Config.Channels[0] as read by one user
	Clear   Kind = "clear"   // clears Config.Dots[0] for one user
	Publish Kind = "publish" // publishes a notice in Config.Channels[0]

	Post     Kind = "post"     // publishes a post of one author; the id of the post has the current time
	Timeline Kind = "timeline" // reads the newest Config.Page posts of one user's followees, with their counts
)

var kinds = []Kind{Read, Page, Incr, Mixed, Poll, Polls, Feed, Seen, Clear, Publish, Post, Timeline}

// OfUsers reports whether requests of this kind are about a user's unread numbers, feed, posts or
// timeline, instead of rows of Config.Keyspace.
func (k Kind) OfUsers() bool { return slices.Index(kinds, k) >= slices.Index(kinds, Poll) }

// Config configures a load.
type Config struct {
	Addr        *url.URL
	TLS         *tls.Config // TLS configuration for https; nil for the default one
	Token       string      // bearer token of the requests; "" for none
	Keyspace    string      // keyspace of the rows; UnreadKeyspace if Op.OfUsers()
	Column      string      // column to which increments add 1
	Op          Kind
	Page        int           // number of ids in one Page, Polls or Timeline request
	Batch       int           // number of increments in one request
	NoResults   bool          // increments do not ask for the new counts
	ReadShare   float64       // share of Page requests in Mixed, 0 … 1
	Consistency string        // consistency of reads: stale, bounded or linearizable; "" for the server's default
	Concurrency int           // maximum number of requests in flight
	Rate        float64       // requests a second in an open loop; 0 for a closed loop
	Duration    time.Duration // measured time; 0 to run until Requests are done
	Requests    int64         // total number of requests; 0 to run for Duration
	Channels    []string      // channels of polls
	Dots        []string      // dots of polls
	Followees   int           // average number of followees of a feed
	Authors     uint64        // the followees of a feed are drawn from ids 1 … Authors
	IDs         IDs
	Timeout     time.Duration // time after which the client gives up on a request
	Deadline    time.Duration // deadline that requests carry; 0 for the server's default
	// Once gives each worker a producer name. A worker then repeats an increment of unknown outcome
	// until the outcome is known.
	Once bool
	// If Memory is set, the run samples the server's memory.
	Memory bool
}

// Validate checks the config. Run calls Validate too.
func (c *Config) Validate() error {
	names := slices.Concat(c.Channels, c.Dots)
	switch {
	case !slices.Contains(kinds, c.Op):
		return fmt.Errorf("the op is one of %s, not %q", listed(kinds), c.Op)
	case c.Op == Polls && c.Page > PollMax:
		return fmt.Errorf("a poll is of 1 to %d users, not %d", PollMax, c.Page)
	// Refuse names that need escaping: requests do not escape names, and a server does not accept
	// such names.
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

// listed returns the kinds as a text, separated by commas.
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

// Run runs the load and returns its report. It opens the connections before the measured time. If
// ctx ends during the load, Run returns ctx's error and a report of the time until then. With any
// other error, the report is nil.
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

// connect opens the connections of all workers concurrently, so that none is opened in the measured
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
