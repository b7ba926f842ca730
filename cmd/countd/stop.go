package main

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/cluster"
)

// A stop takes at most 10 s and --shutdown-delay. Orchestrators grant at least 10 s. If the
// stop is cut short, the next start is slower, but no count is lost: all acknowledged
// writes are in the synced logs.
const (
	announceTimeout = time.Second     // for other nodes to hear of the stop
	readersTimeout  = time.Second     // for readers of sources to apply their batch
	handOverTimeout = 3 * time.Second // for other nodes to take over the groups that this one leads
	drainTimeout    = 2 * time.Second // after that, for requests in flight
	closeTimeout    = 4 * time.Second // after the hand-over, for the groups and their snapshots
	// lateTimeout is how long a step may take to return after its timeout.
	lateTimeout = 500 * time.Millisecond
)

// stop makes the node not ready and hands its groups over. If there are other nodes, it then
// accepts requests for delay. After that it refuses new requests, finishes requests in flight,
// writes the snapshots that are worthwhile, and releases the directory. A step that exceeds its
// time is logged, not returned.
func (p *process) stop(delay time.Duration) error {
	var errs []error
	if p.watcher != nil { // the following steps are no events
		p.watcher.close()
	}
	if c := p.controller.Load(); c != nil {
		c.Close()
	}
	if p.gossip != nil {
		// Other nodes should hear of the stop before the process ends; otherwise they report a dead
		// node. Ignore the error: it could only be a bad field of this node, and the start has
		// refused those.
		_ = p.gossip.Announce(announceTimeout, func(m *cluster.Member) { m.State = cluster.MemberStopping })
	}
	if p.sources != nil { // while this node can still write the messages that the sources have read
		_, err := p.within("end the readers of sources", readersTimeout, p.endReaders)
		errs = append(errs, err)
	}
	if p.node != nil {
		_, err := p.within("hand over the groups led here", handOverTimeout, p.node.HandOver)
		errs = append(errs, err)
		if len(p.node.Catalog().Nodes) > 1 {
			p.server.Retire()
			time.Sleep(delay)
		}
	}
	_, err := p.within("finish the requests in flight", drainTimeout, p.shutServers)
	errs = append(errs, err, p.closeAuth())
	closed := true
	if p.node != nil {
		var err error
		closed, err = p.within("close the groups", closeTimeout, p.node.Close)
		errs = append(errs, err)
	}
	if p.gossip != nil {
		errs = append(errs, p.gossip.Close())
	}
	p.tls.close()
	if closed { // otherwise keep the lock as long as the process may write
		errs = append(errs, p.dir.Close())
	}
	return errors.Join(errs...)
}

func (p *process) endReaders(ctx context.Context) error {
	p.sources.Close(ctx)
	return nil
}

// within runs one step of the stop until the timeout and reports whether the step was done
// by then. A timeout is not an error.
func (p *process) within(what string, timeout time.Duration, step func(context.Context) error) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- step(ctx) }() // ends by ctx or, if it hangs, with the process
	select {
	case err = <-result:
	case <-time.After(timeout + lateTimeout):
		err = context.DeadlineExceeded
	}
	if errors.Is(err, context.DeadlineExceeded) {
		p.logger.Warn("stop cut short", "step", what, "after", timeout.String())
		return false, nil
	}
	return true, err
}

// shutServers waits until both servers have finished the requests in flight.
func (p *process) shutServers(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { // ends with ctx at the latest
		if p.redis == nil {
			ended <- nil
			return
		}
		ended <- p.redis.Shutdown(ctx)
	}()
	var err error
	if p.server != nil {
		err = p.server.Shutdown(ctx)
	}
	return errors.Join(err, <-ended)
}
