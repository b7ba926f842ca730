package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Proposal asks a node to form a cluster with exactly the nodes of Set.
type Proposal struct {
	To  string   `json:"to"`  // key of the addressed node, because another node may have its address by now
	Set []string `json:"set"` // keys, ascending; the first node is the initiator
}

// Agreement answers a Proposal. A node that agrees keeps this promise for 10 s.
type Agreement struct {
	Agreed bool   `json:"agreed"`
	Why    string `json:"why,omitempty"` // the reason if not Agreed
}

// HandleForm answers another node's proposal. It is safe for concurrent use. An error means that
// the promise could not be stored durably.
func (f *Former) HandleForm(_ context.Context, p Proposal) (Agreement, error) {
	self := f.cfg.Identity.Key()
	if p.To != self {
		return Agreement{Why: fmt.Sprintf("this is node %q, not %q", self, p.To)}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.over || f.cfg.alone() {
		return Agreement{Why: "this node forms no cluster with others"}, nil
	}
	step := decide(f.mu.identity, f.cfg.Expect, f.cfg.View.Members())
	set := strings.Join(p.Set, ",")
	switch {
	case len(step.set) == 0:
		return Agreement{Why: "this node waits for " + step.why}, nil
	case keySet(step.set) != set:
		return Agreement{Why: fmt.Sprintf("this node sees %s", keySet(step.set))}, nil
	case step.initiate:
		return Agreement{Why: "this node is the one that asks"}, nil
	}
	if why, err := f.promiseLocked(set); why != "" || err != nil {
		return Agreement{Why: why}, err
	}
	return Agreement{Agreed: true}, nil
}

// promiseLocked promises to form a cluster only with set. The promise lasts for promiseFor after
// promiseLocked returns. If the node cannot promise that, why is the reason.
func (f *Former) promiseLocked(set string) (why string, err error) {
	if f.mu.identity.Promised != set {
		if time.Now().Before(f.mu.promisedUntil) {
			return fmt.Sprintf("this node has just agreed to %s", f.mu.identity.Promised), nil
		}
		if err := f.cfg.Store.SetPromised(set); err != nil {
			return "", err
		}
		f.mu.identity.Promised = set
	}
	f.mu.promisedUntil = time.Now().Add(promiseFor)
	return "", nil
}

// initiate asks all other nodes of the set and, if all agree in time, founds the cluster.
func (r *formRun) initiate(ctx context.Context, set []Member) (Identity, error) {
	r.mu.Lock()
	why, err := r.promiseLocked(keySet(set))
	r.mu.Unlock()
	if err != nil {
		return Identity{}, err
	}
	began := time.Now() // read the clock before any request, and thus before any other node promises
	if why == "" {
		why = r.askAll(ctx, set)
	}
	if why == "" {
		step := decide(r.identity(), r.cfg.Expect, r.cfg.View.Members())
		if keySet(step.set) != keySet(set) {
			why = "the nodes reached have changed meanwhile"
		}
	}
	if why != "" {
		r.retryLater(why)
		return Identity{}, nil
	}
	id, err := r.found(began, keySet(set))
	if err == nil && id.ClusterID == "" {
		r.retryLater("the others' answers took too long")
	}
	return id, err
}

// found creates a cluster. agreed is the set on which the nodes agreed; "" for a cluster of this
// node alone. If formTimeout has passed since began, or this node has promised another set
// meanwhile, a set founds no cluster, and the returned identity has none.
func (f *Former) found(began time.Time, agreed string) (Identity, error) {
	cluster := randomHex(clusterIDBytes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if agreed != "" && (time.Since(began) >= formTimeout || f.mu.identity.Promised != agreed) {
		return Identity{}, nil
	}
	if err := f.cfg.Store.SetCluster(cluster, true); err != nil {
		return Identity{}, err
	}
	f.mu.over = true
	f.hasClusterLocked(cluster, true)
	if agreed != "" { // the start of the node already logs that it forms a cluster alone
		f.cfg.Logger.Info("formed a cluster", "cluster_id", cluster, "of", agreed)
	}
	return f.mu.identity, nil
}

// hasClusterLocked sets the cluster in memory. Store.SetCluster sets it on disk.
func (f *Former) hasClusterLocked(cluster string, founder bool) {
	id := &f.mu.identity
	id.ClusterID, id.Founder, id.Joining, id.Promised = cluster, founder, "", ""
	f.mu.waiting = ""
}

// askAll asks all other nodes of the set at the same time, and repeats requests without an
// answer until formTimeout. It returns "" when all have agreed. No goroutine outlives it.
func (f *Former) askAll(ctx context.Context, set []Member) (why string) {
	ctx, cancel := context.WithTimeout(ctx, formTimeout)
	defer cancel()
	answers := make(chan string, len(set))
	var asking sync.WaitGroup
	asked := 0
	for _, m := range set {
		if m.Key != f.cfg.Identity.Key() {
			asked++
			asking.Go(func() { answers <- f.askOne(ctx, m, keysOf(set)) })
		}
	}
	for range asked {
		if answer := <-answers; answer != "" && why == "" {
			why = answer
			cancel() // without this agreement, the other answers do not matter
		}
	}
	asking.Wait()
	return why
}

// askOne repeats the proposal to one node until the node answers or ctx ends. It returns "" if the
// node has agreed, and the reason otherwise.
func (f *Former) askOne(ctx context.Context, m Member, set []string) (why string) {
	why = fmt.Sprintf("node %q did not answer", m.Name)
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := f.cfg.Asker.Form(once, m.ClusterAddr, Proposal{To: m.Key, Set: set})
		cancel()
		switch {
		case err == nil && answer.Agreed:
			return ""
		case err == nil:
			return fmt.Sprintf("node %q does not agree: %s", m.Name, answer.Why)
		}
		why = fmt.Sprintf("node %q did not answer: %v", m.Name, err)
		select {
		case <-ctx.Done():
		case <-time.After(askAgain):
		}
	}
	return why
}
