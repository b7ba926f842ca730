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
	"github.com/countd/countd/shard/errs"
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
	known := false // an earlier try of this call found the source
	var made *held // the source, once this call has made it Changing
	src, err := s.change(ctx, name, func(n *node, src catalog.Source, err error) (catalog.Source, error) {
		switch {
		case err == nil:
			known = true
			if err := s.checkNamed(ctx, n, src.Config, cfg); err != nil {
				return src, err
			}
			return s.set(ctx, n, src, cfg, &made)
		case known && errors.Is(err, ErrUnknownSource): // the source was deleted meanwhile; a new source would count all messages again
			return src, &catalog.RefusedError{Reason: "the source was deleted at the same time: put it again to make another"}
		case errors.Is(err, ErrUnknownSource):
			if err := s.checkNamed(ctx, n, nil, cfg); err != nil {
				return src, err
			}
			return s.create(ctx, n, cfg, &made)
		}
		return src, err
	})
	if err != nil && made != nil {
		err = errors.Join(err, s.release(ctx, made))
	}
	return src, err
}

// changesMax bounds the tries of a call. A try fails only because another change came first.
const changesMax = 10

// change calls applyChange and returns the resulting source with its state.
func (s *Sources) change(ctx context.Context, name string, apply func(*node, catalog.Source, error) (catalog.Source, error)) (*Source, error) {
	n, src, err := s.applyChange(ctx, name, apply)
	if err != nil {
		return nil, err
	}
	return &s.join(ctx, n, []catalog.Source{src})[0], nil
}

// applyChange calls apply with the source, or with the error of reading it. If another change came
// first, it reads the source again and repeats the call.
func (s *Sources) applyChange(ctx context.Context, name string, apply func(*node, catalog.Source, error) (catalog.Source, error)) (*node, catalog.Source, error) {
	for tries := 1; ; tries++ {
		n, src, err := s.find(ctx, name)
		if n == nil {
			return nil, src, err
		}
		src, err = apply(n, src, err)
		if !errors.Is(err, ErrSourceChanged) && !errors.Is(err, ErrSourceExists) || tries == changesMax {
			return n, src, refusal(err)
		}
	}
}

// create creates a source. A source that does not begin at the first messages stays paused until
// its start positions are recorded. Otherwise a reader could record different start positions.
func (s *Sources) create(ctx context.Context, n *node, cfg *source.Config, made **held) (catalog.Source, error) {
	later := !cfg.Start.Earliest()
	src, err := n.CreateSource(ctx, cfg.Name, cfg.JSON(), later)
	if err != nil || !later {
		return src, err
	}
	*made = &held{Source: src}
	return s.beginAndResume(ctx, n, src)
}

// held is a source that a change has made Changing, which means: paused until the change is
// complete.
type held struct {
	catalog.Source
	// before and paused are the configuration and the state that the source had before the call.
	// They are set only if the call replaced the meaning of a source that had not begun.
	before json.RawMessage
	paused bool
}

// release undoes the first part of a failed change, so that the source does not stay Changing. If
// the source has begun by now, release resumes it. It may have begun because a reader has begun a
// partition, or because a start of this call was applied late. The resume changes the version, so
// another call that has read the source as Changing has to try again. If the source has not begun,
// but another call has changed it, release does nothing: that call will record the start positions.
func (s *Sources) release(ctx context.Context, src *held) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	var err error
	for tries := 0; err == nil && tries < changesMax; tries++ {
		n, now, gone := s.find(ctx, src.Name) // a change whose answer was lost may not have reached this node yet
		switch {
		case n == nil:
			return gone
		case gone != nil || now.Number != src.Number || !now.Changing:
			return nil
		case !unbegun(now):
			_, err = n.SetPaused(ctx, now, false, false)
		case now.Version != src.Version:
			return nil
		case src.before != nil:
			_, err = n.SetMeaning(ctx, now, src.before, nil, src.paused)
		default:
			err = n.DeleteSource(ctx, now)
		}
		if !errors.Is(err, ErrSourceChanged) && !errors.Is(err, ErrUnknownSource) {
			return err
		}
		err = nil
	}
	return err
}

// beginAndResume records the start positions of a Changing source, and resumes the source.
func (s *Sources) beginAndResume(ctx context.Context, n *node, src catalog.Source) (catalog.Source, error) {
	begun, err := s.begun(ctx, n, src)
	if err == nil && !begun.Changing { // an operator has paused or resumed the source
		err = ErrSourceChanged
	}
	if err != nil {
		return src, err
	}
	return n.SetPaused(ctx, begun, false, false)
}

// begun records the start positions of a source, and returns the resulting source.
func (s *Sources) begun(ctx context.Context, n *node, src catalog.Source) (catalog.Source, error) {
	failed := s.begin(ctx, n, src)
	if failed != nil && !errors.Is(failed, sink.ErrStopped) {
		return src, failed
	}
	now, err := n.Source(src.Name)
	if err == nil && now.Number != src.Number { // the source got another number, or was deleted and created again
		return src, ErrSourceChanged
	}
	return now, cmp.Or(err, failed)
}

// unbegun reports whether a source must stay paused because its start positions are not recorded.
// Either the call that creates it is still running, or its node has died.
func unbegun(src catalog.Source) bool {
	cfg, err := source.ParseConfig(src.Config)
	return err == nil && src.Paused && len(src.Partitions) == 0 && !cfg.Start.Earliest()
}

// changeTimeout bounds a change of the catalog that outlives the request.
const changeTimeout = 5 * time.Second

// set replaces the configuration of a source. If that alters the meaning of messages, set pauses a
// running source and resumes it afterwards. It also resumes a source that an earlier change left
// paused, but not a source that an operator paused.
//
// A source that has begun no partition gets another number if its start changes. So a late start by
// a reader or by an abandoned creation, which names the old number, fails.
func (s *Sources) set(ctx context.Context, n *node, src catalog.Source, cfg *source.Config, made **held) (catalog.Source, error) {
	before, err := source.ParseConfig(src.Config)
	if err != nil {
		return src, err
	}
	unread, stays := len(src.Partitions) == 0, src.Paused && !src.Changing
	begins := unread && !cfg.Start.Earliest()
	var now catalog.Source
	if cfg.SameMeaning(before) && (!unread || reflect.DeepEqual(cfg.Start, before.Start)) {
		now, err = n.SetSource(ctx, src, cfg.JSON(), stays || begins)
	} else {
		paused := src
		if !src.Paused { // if the source is paused, another change has paused it; whichever put comes first resumes the source
			meet(ctx, n, src)
			*made = &held{Source: src}
			if paused, err = n.SetPaused(ctx, src, true, true); err != nil {
				return src, err
			}
		}
		if now, err = s.setMeaning(ctx, n, paused, before, cfg, stays || begins); err == nil && begins && !stays {
			*made = &held{now, src.Config, src.Paused}
		}
	}
	if err != nil || stays || !begins {
		return now, err
	}
	return s.beginAndResume(ctx, n, now)
}

// setMeaning replaces the configuration of a paused source and the meaning of its messages.
func (s *Sources) setMeaning(ctx context.Context, n *node, src catalog.Source, before, cfg *source.Config, paused bool) (catalog.Source, error) {
	if err := s.awaitEnd(ctx, n, src); err != nil {
		return src, err
	}
	settled, err := n.SettleSource(ctx, src)
	if errors.Is(err, sink.ErrStopped) { // another change gave the source another meaning, or deleted it
		err = ErrSourceChanged
	}
	if err != nil {
		return src, err
	}
	for _, at := range settled {
		if err := cfg.Continues(before, at); err != nil {
			return src, &catalog.RefusedError{Reason: err.Error()}
		}
	}
	return n.SetMeaning(ctx, src, cfg.JSON(), settled, paused)
}

// Pause pauses a source and waits until its readers have ended, at most for the time of the call.
// No change that began earlier resumes the source afterwards.
func (s *Sources) Pause(ctx context.Context, name string) (*Source, error) {
	return s.change(ctx, name, func(n *node, src catalog.Source, err error) (catalog.Source, error) {
		if err == nil {
			meet(ctx, n, src)
			src, err = n.SetPaused(ctx, src, true, false)
		}
		if err == nil {
			err = s.awaitEnd(ctx, n, src)
		}
		if err != nil {
			return src, err
		}
		settling, cancel := context.WithTimeout(ctx, pauseAnswer/2)
		defer cancel()
		_, _ = n.SettleSource(settling, src) // ignore the error, because a change of meaning settles the source again
		return src, nil
	})
}

// meet waits until the readers of a source have moved all shards to one position, which they do
// each second. Call it before a pause: if a reader has just died, the next reader can then still
// move the shards to one position before the pause. meet itself moves no shard.
func meet(ctx context.Context, n *node, src catalog.Source) {
	if src.Paused {
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
	for partition, begun := range src.Partitions {
		meeting.Go(func() error {
			var furthest *sink.Position
			for ctx.Err() == nil {
				if all, err := n.SourcePositions(ctx, src.Number, partition); err == nil {
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
	_ = meeting.Wait() // the functions never return an error
}

// awaitEnd waits for the end of the readers of a paused source.
func (s *Sources) awaitEnd(ctx context.Context, n *node, src catalog.Source) error {
	end := time.Now().Add(pauseMax)
	if deadline, has := ctx.Deadline(); has && deadline.Add(-pauseAnswer).Before(end) {
		end = deadline.Add(-pauseAnswer)
	}
	for s.isRead(ctx, n, src.Number) && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(matchEvery / 2):
		}
	}
	return nil
}

const (
	// meetMax bounds the wait of meet. In this time, gossip detects a dead node, and another node
	// begins to read.
	meetMax = 5 * time.Second
	// pauseMax bounds a pause's wait for readers, which usually end sooner.
	pauseMax = 15 * time.Second
	// pauseAnswer is the part of a call's time reserved for its answer.
	pauseAnswer = 2 * time.Second
)

func (s *Sources) isRead(ctx context.Context, n *node, number uint64) bool {
	for _, reports := range s.reports(ctx, n, n.Catalog()) {
		if slices.ContainsFunc(reports, func(r report) bool { return r.Number == number && !r.Ended }) {
			return true
		}
	}
	return false
}

// Resume ends the pause of a source.
func (s *Sources) Resume(ctx context.Context, name string) (*Source, error) {
	return s.change(ctx, name, func(n *node, src catalog.Source, err error) (catalog.Source, error) {
		if err != nil {
			return src, err
		}
		if unbegun(src) {
			if src, err = s.begun(ctx, n, src); err != nil {
				return src, err
			}
		}
		return n.SetPaused(ctx, src, false, false)
	})
}

// Seek sets the positions from which the partitions of a paused source continue. The parameter to
// has these positions as text, by partition.
func (s *Sources) Seek(ctx context.Context, name string, to map[uint32]string) (*Source, error) {
	positions := map[uint32]sink.Position{}
	for partition, text := range to {
		p, err := source.ParsePosition(text)
		if err != nil {
			return nil, &errs.ArgumentError{Field: fmt.Sprintf("positions.%d", partition), Problem: err.Error()}
		}
		positions[partition] = p
	}
	return s.change(ctx, name, func(n *node, src catalog.Source, err error) (catalog.Source, error) {
		if err != nil {
			return src, err
		}
		if !src.Paused {
			return src, &catalog.RefusedError{Reason: "the source is not paused: pause it before a seek"}
		}
		cfg, err := source.ParseConfig(src.Config)
		if err != nil {
			return src, err
		}
		for partition, text := range to {
			if positions[partition], err = cfg.Position(text); err != nil {
				return src, err
			}
		}
		if unbegun(src) { // refuse, because after a seek the partition would count as begun
			if src, err = s.begun(ctx, n, src); err != nil {
				return src, err
			}
		}
		for partition := range positions {
			if _, known := src.Partitions[partition]; !known && len(src.Partitions) > 0 {
				return src, &errs.ArgumentError{Field: fmt.Sprintf("positions.%d", partition), Problem: "no such partition"}
			}
		}
		return n.SeekSource(ctx, src, positions)
	})
}

// Delete deletes a source and its positions.
func (s *Sources) Delete(ctx context.Context, name string) error {
	_, _, err := s.applyChange(ctx, name, func(n *node, src catalog.Source, err error) (catalog.Source, error) {
		if err == nil {
			err = n.DeleteSource(ctx, src)
		}
		return src, err
	})
	return err
}

// argument converts an error of a configuration to an error of the request's body.
func argument(err error) error {
	if bad, is := errors.AsType[*source.ConfigError](err); is {
		return &errs.ArgumentError{Field: cmp.Or(bad.Field, "body"), Problem: bad.Problem}
	}
	return err
}

// refusal returns a RefusedError for an error that the caller of a change can resolve, and
// otherwise err.
func refusal(err error) error {
	for _, mendable := range []error{ErrNotPaused, ErrSourceChanged, ErrSourceExists, errUnreadable, sink.ErrMoved, sink.ErrBusy} {
		if errors.Is(err, mendable) {
			return &catalog.RefusedError{Reason: err.Error()}
		}
	}
	return err
}
