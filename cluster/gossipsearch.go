package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// seedsMax bounds the searched addresses, which are those of --join and of the catalog's
	// nodes.
	seedsMax = membersMax
	// One search tries at most triesMax addresses if this node is alone, and otherwise at most
	// triesMin, because its living peers search too.
	triesMax = 64
	triesMin = 3
	// searchLogEvery is the interval at which a node that has found no other node logs that.
	searchLogEvery = 10 * time.Second
)

// search is the state of the search for members that gossip does not reach. At the start of the
// node, gossip reaches no members. After a network partition, it does not reach the members on the
// other side. memberlist does not search for dead members, and forgets a member half a minute after
// its death.
type search struct {
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended
	wake chan struct{} // Seeds sends a value after it has added seeds

	mu struct {
		sync.Mutex
		seeds   []string
		problem string // why the last search found no node; "" if it found one
	}
}

// isSeed reports whether addr is an address of --join, or was added by Gossip.Seeds.
func (s *search) isSeed(addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.mu.seeds, addr)
}

// startSearch starts the goroutine that searches until stopSearch.
func (g *Gossip) startSearch() {
	ctx, cancel := context.WithCancel(context.Background())
	s := &g.search
	s.stop, s.done, s.wake = cancel, make(chan struct{}), make(chan struct{}, 1)
	s.mu.seeds = slices.Clone(g.cfg.Join)
	go func() {
		defer close(s.done)
		g.runSearch(ctx)
	}()
}

// stopSearch ends the search and waits for its goroutine. The wait takes at most the timeout of one
// address.
func (g *Gossip) stopSearch() {
	g.search.stop()
	<-g.search.done
}

// Seeds adds gossip addresses at which to search for members, such as those of the catalog's nodes.
// It ignores addresses beyond 1,024 in all, including those of --join.
func (g *Gossip) Seeds(addrs []string) {
	s := &g.search
	s.mu.Lock()
	for _, a := range addrs {
		if len(s.mu.seeds) < seedsMax && !slices.Contains(s.mu.seeds, a) {
			s.mu.seeds = append(s.mu.seeds, a)
		}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Problem returns why a node without living peers has not found any yet. It returns "" if there is
// a living peer, or no address to search.
func (g *Gossip) Problem() string {
	if !g.view.alone() {
		return ""
	}
	g.search.mu.Lock()
	defer g.search.mu.Unlock()
	return g.search.mu.problem
}

func (g *Gossip) runSearch(ctx context.Context) {
	t := g.cfg.timing
	wait := t.searchMin
	logged := time.Time{}
	for {
		problem := g.searchOnce(ctx)
		g.search.mu.Lock()
		g.search.mu.problem = problem
		g.search.mu.Unlock()
		switch {
		case !g.view.alone():
			wait = t.searchMax
		case problem == "":
			wait = t.searchMin
		default:
			wait = min(2*wait, t.searchMax)
			if time.Since(logged) >= searchLogEvery && ctx.Err() == nil {
				logged = time.Now()
				g.cfg.Logger.Warn("found no other node yet", "err", problem)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-g.search.wake:
		case <-time.After(wait/2 + rand.N(wait/2)): // random, so that nodes do not search at the same moments
		}
	}
}

// searchOnce tries some addresses at which no living member is known. It returns why it found no
// node, or "".
func (g *Gossip) searchOnce(ctx context.Context) (problem string) {
	targets := g.targets()
	if g.view.alone() {
		targets = targets[:min(len(targets), triesMax)]
	} else {
		targets = targets[:min(len(targets), triesMin)]
	}
	reached := false
	for _, addr := range targets {
		if ctx.Err() != nil {
			return ""
		}
		if err := g.meet(ctx, addr, g.search.isSeed(addr)); err != nil {
			problem = fmt.Sprintf("%s: %v", addr, err)
		} else {
			reached = true
		}
	}
	if reached {
		return ""
	}
	return problem
}

// targets returns the addresses of seeds and of dead members, in random order, without those
// of living members. A seed that is a host name is always included.
func (g *Gossip) targets() []string {
	g.search.mu.Lock()
	targets := slices.Clone(g.search.mu.seeds)
	g.search.mu.Unlock()
	live := g.live()
	for _, m := range g.view.peers(false) {
		targets = append(targets, m.GossipAddr)
	}
	slices.Sort(targets)
	targets = slices.DeleteFunc(slices.Compact(targets), func(a string) bool { return live[a] })
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	return targets
}

// meet exchanges members with one node at addr. It returns nil if all IP addresses of addr belong
// to living members or to this node.
func (g *Gossip) meet(ctx context.Context, addr string, seed bool) error {
	lookup, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	all, err := resolve(lookup, addr)
	if err != nil {
		return err
	}
	live := g.live()
	for _, at := range all[:min(len(all), triesMax)] {
		if live[at.String()] || ctx.Err() != nil {
			continue
		}
		if err = g.exchange(at.String(), seed); err == nil {
			return nil
		}
	}
	if first := errors.Unwrap(err); first != nil {
		return first // only the first error, because memberlist's joined error has several lines
	}
	return err
}

// exchange exchanges members with the node at one address. If this node has no cluster and the
// address is a seed, this node may join the cluster that it finds there.
func (g *Gossip) exchange(addr string, seed bool) error {
	if !seed || !g.view.dial() {
		_, err := g.list.Join([]string{addr})
		return err
	}
	_, err := g.list.Join([]string{addr})
	if g.view.dialled(addr, err == nil) {
		_, err = g.list.Join([]string{addr}) // now gossipView accepts members that it refused before
	}
	return err
}

// live returns the gossip addresses of living peers, and this node's.
func (g *Gossip) live() map[string]bool {
	live := map[string]bool{g.addr: true}
	for _, m := range g.view.peers(true) {
		live[m.GossipAddr] = true
	}
	return live
}
