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
	// seedsMax bounds the addresses to look at: those of --join and those of all
	// nodes of the catalog.
	seedsMax = membersMax
	// triesMax bounds the addresses tried in one search by a node that is alone,
	// triesMin by one that is not, which has the others search too.
	triesMax = 64
	triesMin = 3
	// searchLogEvery is how often a node that is alone says so.
	searchLogEvery = 10 * time.Second
)

// search looks for members that gossip does not reach: at first all, after a cut
// those beyond it, which memberlist forgets half a minute after it took them for
// dead.
type search struct {
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended
	wake chan struct{} // has one when there are new seeds

	mu struct {
		sync.Mutex
		seeds   []string
		problem string // of the last search, "" if it reached somebody
	}
}

// isSeed reports whether the node was told the address.
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

// stopSearch ends the search and waits for it, at most for one address's time-out.
func (g *Gossip) stopSearch() {
	g.search.stop()
	<-g.search.done
}

// Seeds adds gossip addresses to look for members at, such as those of the
// catalog's nodes; past 1,024 addresses it adds none. The addresses of --join
// stay.
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

// Problem says why a node that is alone has found nobody yet; "" when it is not
// alone, or has nowhere to look.
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
		case <-time.After(wait/2 + rand.N(wait/2)): // not all nodes at one moment
		}
	}
}

// searchOnce asks some addresses where nobody is known to live, and says why
// that led to nobody, or "".
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

// targets returns the addresses of seeds and of dead members, in random order,
// but for those where a member lives. A seed that is a host's name is always
// among them.
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

// meet exchanges what is known with one node at addr, which is of the seeds or not. That
// all its nodes are known to live, or are this one, is no error.
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
		return first // memberlist makes a list of one, over several lines
	}
	return err
}

// exchange exchanges what is known with the node at one address. If this node has no
// cluster and was told the address, it may then join the cluster that it finds there.
func (g *Gossip) exchange(addr string, seed bool) error {
	if !seed || !g.view.dial() {
		_, err := g.list.Join([]string{addr})
		return err
	}
	_, err := g.list.Join([]string{addr})
	if g.view.dialled(addr, err == nil) {
		_, err = g.list.Join([]string{addr}) // lets those in that were refused before
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
