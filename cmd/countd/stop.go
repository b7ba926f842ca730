package main

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/cluster"
)

// A stop takes at most 10 s plus --shutdown-delay. Orchestrators grant at least 10 s. If the stop
// is cut short, the next start is slower, but no count is lost: all acknowledged writes are in the
// synced logs.
const (
	announceTimeout = time.Second     // for the announcement to reach other nodes
	growthTimeout   = time.Second     // for a call that was under way
	readersTimeout  = time.Second     // for readers of sources to apply their batch
	handOverTimeout = 3 * time.Second // for other nodes to take over the groups that this one leads
	drainTimeout    = 2 * time.Second // after the hand-over and --shutdown-delay, for requests in flight
	closeTimeout    = 4 * time.Second // for closing the groups, including their last snapshots
	// lateTimeout is how long a step may take to return after its context has ended.
	lateTimeout = 500 * time.Millisecond
)

// stop makes the node not ready and hands its groups over. If there are other nodes, it then still
// accepts requests for the time delay. After that it refuses new requests, finishes requests in
// flight, writes the snapshots that are worthwhile, and releases the directory. A step that exceeds
// its time is logged, not returned.
func (p *process) stop(delay time.Duration) error {
	var errs []error
	if p.watcher != nil { // the following steps cause changes that are no events to log
		p.watcher.close()
	}
	if c := p.controller.Load(); c != nil {
		c.Close()
	}
	if p.growth != nil {
		_, err := p.within("end a look at large keyspaces", growthTimeout, p.growth.Close)
		errs = append(errs, err)
	}
	if p.backups != nil {
		_, err := p.within("end a backup", growthTimeout, p.backups.Close)
		errs = append(errs, err)
	}
	if p.gossip != nil {
		// Announce the stop before the process ends, because otherwise other nodes report a dead
		// node. Ignore the error: it could only be an invalid field of this node, which the start
		// has already refused.
		_ = p.gossip.Announce(announceTimeout, func(m *cluster.Member) { m.State = cluster.MemberStopping })
	}
	if p.sources != nil { // before the hand-over, so that sources can still write the messages that they have read
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
	if closed { // otherwise keep the directory's lock, because the process may still write
		errs = append(errs, p.dir.Close())
	}
	return errors.Join(errs...)
}

func (p *process) endReaders(ctx context.Context) error {
	p.sources.Close(ctx)
	return nil
}

// within runs one step of the stop and reports whether the step ended before the timeout. It logs a
// timeout, but does not return it as an error.
func (p *process) within(what string, timeout time.Duration, step func(context.Context) error) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- step(ctx) }() // ends with ctx or, if the step hangs, with the process
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
