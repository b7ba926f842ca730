package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// RefusedError is returned for a change that the present state does not allow. Nothing was
// changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Put makes a source, or replaces its configuration: JSON, or YAML.
func (s *Sources) Put(ctx context.Context, name string, text []byte) (*Source, error) {
	cfg, err := source.ParseNamed(name, text)
	if err == nil {
		err = s.secrets.Check(cfg)
	}
	if err != nil {
		return nil, argument(err)
	}
	n, of, err := s.find(ctx, name)
	switch {
	case errors.Is(err, shard.ErrUnknownSource):
		of, err = s.create(ctx, n, cfg)
	case err == nil:
		if of, err = s.set(ctx, n, of, cfg); err == nil && unbegun(of) { // its maker died
			of, err = s.beginAndResume(ctx, n, of)
		}
	}
	if err != nil {
		return nil, refusal(err)
	}
	return &s.join(ctx, n, []shard.Source{of})[0], nil
}

// create makes a source. One that does not begin at the first messages is paused until its
// beginning is recorded: otherwise a reader could record another.
func (s *Sources) create(ctx context.Context, n *shard.Node, cfg *source.Config) (shard.Source, error) {
	if v := n.Catalog(); !v.TakesSources() {
		return shard.Source{}, &RefusedError{fmt.Sprintf("sources need a later cluster version than %d: see countctl upgrade", v.ClusterVersion)}
	}
	later := !cfg.Start.Earliest()
	of, err := n.CreateSource(ctx, cfg.Name, cfg.JSON(), later)
	if errors.Is(err, shard.ErrSourceExists) { // made at the same time through another node, or by an attempt whose answer was lost
		return s.set(ctx, n, of, cfg)
	}
	if err != nil || !later {
		return of, err
	}
	if of, err = s.beginAndResume(ctx, n, of); err != nil {
		forget, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
		defer cancel()
		return of, errors.Join(err, n.DeleteSource(forget, cfg.Name))
	}
	return of, nil
}

func (s *Sources) beginAndResume(ctx context.Context, n *shard.Node, of shard.Source) (shard.Source, error) {
	if err := s.begin(ctx, n, of); err != nil {
		return of, err
	}
	return n.PauseSource(ctx, of.Name, false)
}

// unbegun reports whether a source is paused because the beginning of its partitions is not
// recorded: it was made a moment ago, or the node that made it died.
func unbegun(of shard.Source) bool {
	cfg, err := source.ParseConfig(of.Config)
	return err == nil && of.Paused && len(of.Partitions) == 0 && !cfg.Start.Earliest()
}

// changeTimeout bounds a change of the catalog that must not end with the request.
const changeTimeout = 5 * time.Second

// set replaces the configuration of a source. One that runs is paused for a change of what
// its messages mean, and goes on after it.
func (s *Sources) set(ctx context.Context, n *shard.Node, of shard.Source, cfg *source.Config) (shard.Source, error) {
	same, runs := false, !of.Paused
	// An older version may have stored what is refused now. Nobody reads such a source, so nobody
	// brings its shards to one position, and only what means the same can replace it.
	if before, _ := source.ParseConfig(of.Config); before != nil {
		same = cfg.SameMeaning(before)
	}
	if same || !runs {
		return n.SetSource(ctx, of, cfg.JSON(), same, of.Paused)
	}
	paused, err := s.pause(ctx, n, of.Name)
	if err == nil {
		paused, err = n.SetSource(ctx, paused, cfg.JSON(), false, false)
	}
	if err != nil {
		resume, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
		defer cancel()
		_, failed := n.PauseSource(resume, of.Name, false)
		return of, errors.Join(err, failed)
	}
	return paused, nil
}

// Pause pauses a source. Its readers have ended when it returns, unless that takes them longer
// than the call may.
func (s *Sources) Pause(ctx context.Context, name string) (*Source, error) {
	n, _, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	of, err := s.pause(ctx, n, name)
	if err != nil {
		return nil, refusal(err)
	}
	return &s.join(ctx, n, []shard.Source{of})[0], nil
}

// pause pauses a source and waits for its readers. If all shards answer, the source's positions
// do not change after that.
func (s *Sources) pause(ctx context.Context, n *shard.Node, name string) (shard.Source, error) {
	of, err := n.PauseSource(ctx, name, true)
	if err != nil {
		return of, err
	}
	end := time.Now().Add(pauseMax)
	if deadline, has := ctx.Deadline(); has && deadline.Add(-pauseAnswer).Before(end) {
		end = deadline.Add(-pauseAnswer)
	}
	for s.isRead(ctx, n, of.Number) && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return of, ctx.Err()
		case <-time.After(matchEvery / 2):
		}
	}
	settling, cancel := context.WithTimeout(ctx, pauseAnswer/2)
	defer cancel()
	_, _ = n.SettleSource(settling, of) // a change that needs it does it again
	return of, nil
}

const (
	// pauseMax is how long a pause waits for readers: longer than they may take to end.
	pauseMax = 15 * time.Second
	// pauseAnswer is what is left of a call's time for its answer.
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
	n, of, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, err := source.ParseConfig(of.Config); err != nil { // whether it has begun is not known
		return nil, &RefusedError{fmt.Sprintf("the configuration is refused by this version: %v", err)}
	}
	if unbegun(of) {
		if err := s.begin(ctx, n, of); err != nil {
			return nil, refusal(err)
		}
	}
	if of, err = n.PauseSource(ctx, name, false); err != nil {
		return nil, refusal(err)
	}
	return &s.join(ctx, n, []shard.Source{of})[0], nil
}

// Seek sets where partitions of a paused source continue, by the texts of their positions.
func (s *Sources) Seek(ctx context.Context, name string, to map[uint32]string) (*Source, error) {
	positions := map[uint32]sink.Position{}
	for partition, text := range to {
		p, err := source.ParsePosition(text)
		if err != nil {
			return nil, &shard.ArgumentError{Field: fmt.Sprintf("positions.%d", partition), Problem: err.Error()}
		}
		positions[partition] = p
	}
	n, of, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	if !of.Paused {
		return nil, &RefusedError{"the source is not paused: pause it before a seek"}
	}
	cfg, err := source.ParseConfig(of.Config)
	if err != nil {
		return nil, err
	}
	for partition, text := range to {
		if positions[partition], err = cfg.Position(text); err != nil {
			return nil, err
		}
	}
	if unbegun(of) { // a partition that is sought counts as begun
		if err = s.begin(ctx, n, of); err == nil {
			of, err = n.Source(name)
		}
		if err != nil {
			return nil, refusal(err)
		}
	}
	for partition := range positions {
		if _, known := of.Partitions[partition]; !known && len(of.Partitions) > 0 {
			return nil, &shard.ArgumentError{Field: fmt.Sprintf("positions.%d", partition), Problem: "no such partition"}
		}
	}
	if of, err = n.SeekSource(ctx, name, positions); err != nil {
		return nil, refusal(err)
	}
	return &s.join(ctx, n, []shard.Source{of})[0], nil
}

// Delete deletes a source, and forgets its positions.
func (s *Sources) Delete(ctx context.Context, name string) error {
	n, _, err := s.find(ctx, name)
	if err != nil {
		return err
	}
	return refusal(n.DeleteSource(ctx, name))
}

// argument returns an error of a configuration as one of the request's body.
func argument(err error) error {
	if bad, is := errors.AsType[*source.ConfigError](err); is {
		return &shard.ArgumentError{Field: cmp.Or(bad.Field, "body"), Problem: bad.Problem}
	}
	return err
}

// refusal returns the errors of a change that its caller can mend as a RefusedError.
func refusal(err error) error {
	for _, mendable := range []error{shard.ErrNotPaused, errUnreadable, sink.ErrMoved, sink.ErrBusy} {
		if errors.Is(err, mendable) {
			return &RefusedError{err.Error()}
		}
	}
	return err
}
