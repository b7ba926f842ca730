package sources

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// Put creates a source, or replaces its configuration, which is JSON or YAML.
func (s *Sources) Put(ctx context.Context, name string, text []byte) (*Source, error) {
	cfg, err := source.ParseNamed(name, text)
	if err == nil {
		err = s.secrets.Check(cfg)
	}
	if err != nil {
		return nil, argument(err)
	}
	known := false // an earlier attempt of this call found the source
	var made *held // the source that this call has made Changing
	of, err := s.change(ctx, name, func(n *shard.Node, of catalog.Source, err error) (catalog.Source, error) {
		switch {
		case err == nil:
			known = true
			if err := s.checkNamed(ctx, n, of.Config, cfg); err != nil {
				return of, err
			}
			return s.set(ctx, n, of, cfg, &made)
		case known && errors.Is(err, sourcesink.ErrUnknownSource): // a new source would count all messages again
			return of, &catalog.RefusedError{Reason: "the source was deleted at the same time: put it again to make another"}
		case errors.Is(err, sourcesink.ErrUnknownSource):
			if err := s.checkNamed(ctx, n, nil, cfg); err != nil {
				return of, err
			}
			return s.create(ctx, n, cfg, &made)
		}
		return of, err
	})
	if err != nil && made != nil {
		err = errors.Join(err, s.release(ctx, made))
	}
	return of, err
}

// changesMax bounds the attempts of a call. Each attempt fails because another change came first.
const changesMax = 10

// change applies a change and returns the source after it.
func (s *Sources) change(ctx context.Context, name string, apply func(*shard.Node, catalog.Source, error) (catalog.Source, error)) (*Source, error) {
	n, of, err := s.applyChange(ctx, name, apply)
	if err != nil {
		return nil, err
	}
	return &s.join(ctx, n, []catalog.Source{of})[0], nil
}

// applyChange calls apply with the source, or with the error of reading it. It reads the source again and
// repeats the call if another change came first.
func (s *Sources) applyChange(ctx context.Context, name string, apply func(*shard.Node, catalog.Source, error) (catalog.Source, error)) (*shard.Node, catalog.Source, error) {
	for tries := 1; ; tries++ {
		n, of, err := s.find(ctx, name)
		if n == nil {
			return nil, of, err
		}
		of, err = apply(n, of, err)
		if !errors.Is(err, sourcesink.ErrSourceChanged) && !errors.Is(err, sourcesink.ErrSourceExists) || tries == changesMax {
			return n, of, refusal(err)
		}
	}
}

// create creates a source. A source that does not begin at the first messages stays paused until
// its beginning is recorded. Otherwise a reader could record another beginning.
func (s *Sources) create(ctx context.Context, n *shard.Node, cfg *source.Config, made **held) (catalog.Source, error) {
	later := !cfg.Start.Earliest()
	of, err := n.CreateSource(ctx, cfg.Name, cfg.JSON(), later)
	if err != nil || !later {
		return of, err
	}
	*made = &held{Source: of}
	return s.beginAndResume(ctx, n, of)
}

// held is a source that a change has made Changing.
type held struct {
	catalog.Source
	// before and paused describe the source before the call replaced its meaning, if it had not
	// begun then. A source that the call created has none.
	before json.RawMessage
	paused bool
}

// release undoes the first part of a change that failed, so that its source does not stay Changing.
// If the source has begun by now, release resumes it: a reader may have begun a partition, or the
// start of this call came late. Another call that has read the source as Changing then begins anew.
// If another call has changed the source, and it has not begun, release leaves it to that call,
// which will record its beginning.
func (s *Sources) release(ctx context.Context, of *held) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	var err error
	for tries := 0; err == nil && tries < changesMax; tries++ {
		n, now, gone := s.find(ctx, of.Name) // a change whose answer was lost may not be known here yet
		switch {
		case n == nil:
			return gone
		case gone != nil || now.Number != of.Number || !now.Changing:
			return nil
		case !unbegun(now):
			_, err = n.SetPaused(ctx, now, false, false)
		case now.Version != of.Version:
			return nil
		case of.before != nil:
			_, err = n.SetMeaning(ctx, now, of.before, nil, of.paused)
		default:
			err = n.DeleteSource(ctx, now)
		}
		if !errors.Is(err, sourcesink.ErrSourceChanged) && !errors.Is(err, sourcesink.ErrUnknownSource) {
			return err
		}
		err = nil
	}
	return err
}

// beginAndResume records where the partitions of a Changing source begin, and resumes it.
func (s *Sources) beginAndResume(ctx context.Context, n *shard.Node, of catalog.Source) (catalog.Source, error) {
	begun, err := s.begun(ctx, n, of)
	if err == nil && !begun.Changing { // an operator has paused or resumed it
		err = sourcesink.ErrSourceChanged
	}
	if err != nil {
		return of, err
	}
	return n.SetPaused(ctx, begun, false, false)
}

// begun records where the partitions of a source begin, and returns the source after that.
func (s *Sources) begun(ctx context.Context, n *shard.Node, of catalog.Source) (catalog.Source, error) {
	failed := s.begin(ctx, n, of)
	if failed != nil && !errors.Is(failed, sink.ErrStopped) {
		return of, failed
	}
	now, err := n.Source(of.Name)
	if err == nil && now.Number != of.Number { // the source got another number, or was created again
		return of, sourcesink.ErrSourceChanged
	}
	return now, cmp.Or(err, failed)
}

// unbegun reports whether a source must stay paused because its beginning is not recorded: the call that creates
// it is under way, or its node died.
func unbegun(of catalog.Source) bool {
	cfg, err := source.ParseConfig(of.Config)
	return err == nil && of.Paused && len(of.Partitions) == 0 && !cfg.Start.Earliest()
}

// changeTimeout bounds a change of the catalog that outlives the request.
const changeTimeout = 5 * time.Second

// set replaces the configuration of a source. If the change alters the meaning of messages, set pauses a
// running source and resumes it afterwards. It also resumes a source that an earlier change left paused, but
// not one that an operator paused.
//
// A source that has begun nothing also gets another number if it is to begin elsewhere. A start
// that is still under way, by a reader or by an abandoned creation, then finds no source.
func (s *Sources) set(ctx context.Context, n *shard.Node, of catalog.Source, cfg *source.Config, made **held) (catalog.Source, error) {
	before, err := source.ParseConfig(of.Config)
	if err != nil {
		return of, err
	}
	unread, stays := len(of.Partitions) == 0, of.Paused && !of.Changing
	begins := unread && !cfg.Start.Earliest()
	var now catalog.Source
	if cfg.SameMeaning(before) && (!unread || reflect.DeepEqual(cfg.Start, before.Start)) {
		now, err = n.SetSource(ctx, of, cfg.JSON(), stays || begins)
	} else {
		paused := of
		if !of.Paused { // otherwise use the pause of the other change; one of the two finishes first
			meet(ctx, n, of)
			*made = &held{Source: of}
			if paused, err = n.SetPaused(ctx, of, true, true); err != nil {
				return of, err
			}
		}
		if now, err = s.setMeaning(ctx, n, paused, before, cfg, stays || begins); err == nil && begins && !stays {
			*made = &held{now, of.Config, of.Paused}
		}
	}
	if err != nil || stays || !begins {
		return now, err
	}
	return s.beginAndResume(ctx, n, now)
}

// setMeaning replaces the configuration of a paused source and the meaning of its messages.
func (s *Sources) setMeaning(ctx context.Context, n *shard.Node, of catalog.Source, before, cfg *source.Config, paused bool) (catalog.Source, error) {
	if err := s.awaitEnd(ctx, n, of); err != nil {
		return of, err
	}
	settled, err := n.SettleSource(ctx, of)
	if errors.Is(err, sink.ErrStopped) { // the source has another meaning by now, or was deleted
		err = sourcesink.ErrSourceChanged
	}
	if err != nil {
		return of, err
	}
	for _, at := range settled {
		if err := cfg.Continues(before, at); err != nil {
			return of, &catalog.RefusedError{Reason: err.Error()}
		}
	}
	return n.SetMeaning(ctx, of, cfg.JSON(), settled, paused)
}

// Pause pauses a source and waits for the end of its readers, as long as the call may take. No change that began
// earlier resumes the source afterwards.
func (s *Sources) Pause(ctx context.Context, name string) (*Source, error) {
	return s.change(ctx, name, func(n *shard.Node, of catalog.Source, err error) (catalog.Source, error) {
		if err == nil {
			meet(ctx, n, of)
			of, err = n.SetPaused(ctx, of, true, false)
		}
		if err == nil {
			err = s.awaitEnd(ctx, n, of)
		}
		if err != nil {
			return of, err
		}
		settling, cancel := context.WithTimeout(ctx, pauseAnswer/2)
		defer cancel()
		_, _ = n.SettleSource(settling, of) // best effort: a change of meaning settles it again
		return of, nil
	})
}

// meet waits, before a pause, until the readers of a source have moved all shards to the furthest
// position, as they do each second. So a pause soon after a reader's death does not leave shards at
// different positions, if the next reader starts in time. meet itself moves nothing.
func meet(ctx context.Context, n *shard.Node, of catalog.Source) {
	if of.Paused {
		return
	}
	wait := meetMax
	if deadline, has := ctx.Deadline(); has {
		wait = min(wait, time.Until(deadline)/3)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var meeting errgroup.Group
	meeting.SetLimit(partitionsAtOnce)
	for partition, begun := range of.Partitions {
		meeting.Go(func() error {
			var furthest *sink.Position
			for ctx.Err() == nil {
				if all, err := n.SourcePositions(ctx, of.Number, partition); err == nil {
					low, high := sink.Span(all, begun.Start)
					if furthest == nil {
						furthest = &high
					}
					if !low.Less(*furthest) {
						return nil
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(matchEvery / 2):
				}
			}
			return nil
		})
	}
	_ = meeting.Wait() // no function returns an error
}

// awaitEnd waits for the end of the readers of a paused source.
func (s *Sources) awaitEnd(ctx context.Context, n *shard.Node, of catalog.Source) error {
	end := time.Now().Add(pauseMax)
	if deadline, has := ctx.Deadline(); has && deadline.Add(-pauseAnswer).Before(end) {
		end = deadline.Add(-pauseAnswer)
	}
	for s.isRead(ctx, n, of.Number) && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(matchEvery / 2):
		}
	}
	return nil
}

const (
	// meetMax bounds a pause's wait for the shards to reach one position. Within it, gossip notices a dead
	// node, and another node begins to read.
	meetMax = 5 * time.Second
	// pauseMax is how long a pause waits for readers. They end sooner.
	pauseMax = 15 * time.Second
	// pauseAnswer is the part of a call's time that is reserved for its answer.
	pauseAnswer = 2 * time.Second
)

func (s *Sources) isRead(ctx context.Context, n *shard.Node, number uint64) bool {
	for _, reports := range s.reports(ctx, n, n.Catalog()) {
		if slices.ContainsFunc(reports, func(r report) bool { return r.Number == number && !r.Ended }) {
			return true
		}
	}
	return false
}

// Resume ends the pause of a source.
func (s *Sources) Resume(ctx context.Context, name string) (*Source, error) {
	return s.change(ctx, name, func(n *shard.Node, of catalog.Source, err error) (catalog.Source, error) {
		if err != nil {
			return of, err
		}
		if unbegun(of) {
			if of, err = s.begun(ctx, n, of); err != nil {
				return of, err
			}
		}
		return n.SetPaused(ctx, of, false, false)
	})
}

// Seek sets where the partitions of a paused source continue. It parses the positions from text.
func (s *Sources) Seek(ctx context.Context, name string, to map[uint32]string) (*Source, error) {
	positions := map[uint32]sink.Position{}
	for partition, text := range to {
		p, err := source.ParsePosition(text)
		if err != nil {
			return nil, &shard.ArgumentError{Field: fmt.Sprintf("positions.%d", partition), Problem: err.Error()}
		}
		positions[partition] = p
	}
	return s.change(ctx, name, func(n *shard.Node, of catalog.Source, err error) (catalog.Source, error) {
		if err != nil {
			return of, err
		}
		if !of.Paused {
			return of, &catalog.RefusedError{Reason: "the source is not paused: pause it before a seek"}
		}
		cfg, err := source.ParseConfig(of.Config)
		if err != nil {
			return of, err
		}
		for partition, text := range to {
			if positions[partition], err = cfg.Position(text); err != nil {
				return of, err
			}
		}
		if unbegun(of) { // a seek makes a partition count as begun
			if of, err = s.begun(ctx, n, of); err != nil {
				return of, err
			}
		}
		for partition := range positions {
			if _, known := of.Partitions[partition]; !known && len(of.Partitions) > 0 {
				return of, &shard.ArgumentError{Field: fmt.Sprintf("positions.%d", partition), Problem: "no such partition"}
			}
		}
		return n.SeekSource(ctx, of, positions)
	})
}

// Delete deletes a source and its positions.
func (s *Sources) Delete(ctx context.Context, name string) error {
	_, _, err := s.applyChange(ctx, name, func(n *shard.Node, of catalog.Source, err error) (catalog.Source, error) {
		if err == nil {
			err = n.DeleteSource(ctx, of)
		}
		return of, err
	})
	return err
}

// argument turns an error of a configuration into one of the request's body.
func argument(err error) error {
	if bad, is := errors.AsType[*source.ConfigError](err); is {
		return &shard.ArgumentError{Field: cmp.Or(bad.Field, "body"), Problem: bad.Problem}
	}
	return err
}

// refusal turns errors that the caller of a change can resolve into a RefusedError.
func refusal(err error) error {
	for _, mendable := range []error{sourcesink.ErrNotPaused, sourcesink.ErrSourceChanged, sourcesink.ErrSourceExists, errUnreadable, sink.ErrMoved, sink.ErrBusy} {
		if errors.Is(err, mendable) {
			return &catalog.RefusedError{Reason: err.Error()}
		}
	}
	return err
}
