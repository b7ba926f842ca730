// Package sources runs the sources of a cluster. On each node it reads the partitions that the node
// owns. For operators, it combines the catalog with the reports of all nodes.
//
// It never decodes a message or moves a position; package source does. For a while, two nodes may
// read the same partition. Invariant: a node reads a source only while its copy of the catalog has
// the source with the same configuration, not paused.
package sources

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
)

const (
	// matchEvery is the interval at which the node compares its readers with the catalog.
	matchEvery = 200 * time.Millisecond
	// openEvery is the interval at which Sources retries to open a source, and checks a source's
	// files for changes.
	openEvery = 5 * time.Second
	// openEnding bounds an ending reader's wait for its broker to open. Only a hanging file system
	// needs longer.
	openEnding = time.Second
	// unreadMax is the time without a reader after which a partition's source is stalled. Usually
	// another node begins to read sooner.
	unreadMax = 15 * time.Second
	// connectCallsMax bounds the concurrent calls that open the broker of one configuration. While
	// a file system hangs, each such call blocks a thread of the system.
	connectCallsMax = 16
)

// Config configures Sources. Its functions must be safe for concurrent use.
type Config struct {
	// Node returns this node, or an error while the node has no cluster.
	Node func() (*shard.Node, error)
	// Self is the key of this node.
	Self string
	// Alive reports whether a node is alive, according to gossip.
	Alive func(key string) bool
	// Open reads the files that a configuration names and returns a broker, which connects on its
	// first use.
	Open func(*source.Config, source.Secrets) (source.Broker, error)
	// SecretsDir is the directory of the files that configurations may name; "" if there is none.
	SecretsDir string
	Logger     *slog.Logger
}

// Sources reads the sources of a cluster on one node, and serves the calls of operators. Start
// starts its goroutine, and Close stops it and waits for it.
type Sources struct {
	cfg      Config
	secrets  source.Secrets
	running  context.Context // context of the readers; abandon ends it if the readers take too long to end
	abandon  context.CancelFunc
	stopping chan struct{}
	stopped  chan struct{} // nil before Start
	counts   counts
	every    time.Duration // openEvery; tests shorten it
	unread   time.Duration // unreadMax; tests shorten it

	filesState func(*source.Config) string // Secrets.State; a test makes it hang

	mu struct {
		sync.Mutex
		node       *node              // last result of the method node
		readers    map[uint64]*reader // by number of the source
		connecting map[string]int     // number of running calls that open a broker, by configuration
		// alive lists the living nodes with their states. The field since is the time of the last
		// change of alive. runs maps a running source's number to the time when this node first saw
		// it running.
		alive string
		since time.Time
		runs  map[uint64]time.Time
	}
}

// New returns the Sources of a node.
func New(cfg Config) *Sources {
	secrets := source.Secrets{Dir: cfg.SecretsDir}
	s := &Sources{cfg: cfg, secrets: secrets, stopping: make(chan struct{}), every: openEvery, unread: unreadMax, filesState: secrets.State}
	s.running, s.abandon = context.WithCancel(context.Background())
	s.mu.readers, s.mu.connecting = map[uint64]*reader{}, map[string]int{}
	return s
}

// node combines this node with its sink for readers, and with its changes of sources.
type node struct {
	*shard.Node
	*Changes
	sink *Sink
}

func newNode(n *shard.Node) *node {
	s := NewSink(n)
	return &node{n, NewChanges(s, n), s}
}

// node returns this node, or the error of Config.Node.
func (s *Sources) node() (*node, error) {
	n, err := s.cfg.Node()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.node == nil || s.mu.node.Node != n {
		s.mu.node = newNode(n)
	}
	return s.mu.node, nil
}

// Start starts to read.
func (s *Sources) Start() {
	s.stopped = make(chan struct{})
	go s.run()
}

// Close ends the readers. Until ctx ends, it lets them move the shards to one position.
func (s *Sources) Close(ctx context.Context) {
	defer s.abandon()
	if s.stopped == nil {
		return
	}
	close(s.stopping)
	select {
	case <-s.stopped:
	case <-ctx.Done():
		s.abandon()
		<-s.stopped
	}
}

func (s *Sources) run() {
	defer close(s.stopped)
	tick := time.NewTicker(matchEvery)
	defer tick.Stop()
	for {
		if n, err := s.node(); err == nil {
			s.match(n, n.Sources())
		}
		select {
		case <-tick.C:
		case <-s.stopping:
			s.endAll()
			return
		}
	}
}

// match ends readers whose source is gone, paused or has another configuration, and starts missing
// readers. It does not block.
func (s *Sources) match(n *node, all []catalog.Source) {
	wanted := map[uint64]catalog.Source{}
	for _, src := range all {
		if !src.Paused {
			wanted[src.Number] = src
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.keep(all)
	s.noteLocked(n.Catalog(), wanted)
	for number, r := range s.mu.readers {
		if src, is := wanted[number]; !is || string(src.Config) != string(r.src.Config) || r.isEnding() || r.stale.Load() {
			if r.end(); r.hasEnded() { // keep an ending reader until it has ended, because it still reports
				delete(s.mu.readers, number)
			}
		}
	}
	for number, src := range wanted {
		if r := s.mu.readers[number]; r == nil || r.hasFailed() && time.Since(r.opened) >= s.every {
			s.mu.readers[number] = s.open(n, src, r)
		}
	}
}

// noteLocked updates alive, since and runs.
func (s *Sources) noteLocked(view *catalog.View, wanted map[uint64]catalog.Source) {
	alive := ""
	for _, key := range slices.Sorted(maps.Keys(view.Nodes)) {
		if s.alive(key) {
			alive += key + " " + string(view.Nodes[key].State) + "\n"
		}
	}
	if s.mu.alive != alive {
		s.mu.alive, s.mu.since = alive, time.Now()
	}
	runs := make(map[uint64]time.Time, len(wanted))
	for number := range wanted {
		if runs[number] = s.mu.runs[number]; runs[number].IsZero() {
			runs[number] = time.Now()
		}
	}
	s.mu.runs = runs
}

// isLate reports whether each partition of a source should have a reader by now, because its owners
// have not changed for unreadMax.
func (s *Sources) isLate(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.mu.runs[number]
	return !runs.IsZero() && time.Since(runs) > s.unread && time.Since(s.mu.since) > s.unread
}

func (s *Sources) alive(key string) bool { return key == s.cfg.Self || s.cfg.Alive(key) }

func (s *Sources) endAll() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.mu.readers))
	clear(s.mu.readers)
	for _, r := range all {
		r.end()
	}
	s.mu.Unlock()
	for _, r := range all {
		<-r.ended
	}
}

// owner returns the node that should read a partition: the living node whose weight for the
// partition is the highest. So few partitions move when nodes join or leave. Draining and leaving
// nodes own a partition only if no living node is active.
func (s *Sources) owner(view *catalog.View, number uint64, partition uint32) string {
	best, top, active := "", uint64(0), false
	for key, node := range view.Nodes {
		if !s.alive(key) {
			continue
		}
		is := node.State == catalog.NodeActive
		if active && !is {
			continue
		}
		h := weight(number, partition, key)
		if best == "" || is && !active || h > top || h == top && key < best {
			best, top, active = key, h, is
		}
	}
	return best
}

// weight returns a hash of a partition and a node.
func weight(number uint64, partition uint32, key string) uint64 {
	f := fnv.New64a()
	_, _ = f.Write([]byte(key)) // never fails
	h := f.Sum64() ^ number ^ uint64(partition)*0x9e3779b97f4a7c15
	for range 2 { // finalizer of MurmurHash3, so that each bit affects all bits
		h ^= h >> 33
		h *= 0xff51afd7ed558ccd
	}
	return h ^ h>>33
}

// errUnreadable is returned when the start positions of a source cannot be read from its queue.
var errUnreadable = errors.New("the queue cannot be read")
