package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
)

// checkNamed returns a *errs.ArgumentError if a configuration names a missing keyspace, column or
// queue of dead letters. Without this check, each message of a missing keyspace or column would be
// bad, and the first bad message would stop a source without a queue of dead letters. If before is
// not nil, it checks only the fields that differ from before. If the queue of dead letters does not
// answer soon, checkNamed assumes that it exists.
func (s *Sources) checkNamed(ctx context.Context, n *node, before json.RawMessage, cfg *source.Config) error {
	old := &source.Config{}
	if before != nil {
		var err error
		if old, err = source.ParseConfig(before); err != nil {
			return err
		}
	}
	if cfg.Map != nil && (old.Map == nil || *cfg.Map != *old.Map) {
		if err := checkMap(n, cfg.Map); err != nil {
			return err
		}
	}
	if cfg.OnError != source.OnErrorDeadLetter || old.OnError == cfg.OnError && old.DeadLetters == cfg.DeadLetters {
		return nil
	}
	return s.checkLetters(ctx, cfg)
}

// checkMap checks the constant names of keyspace and columns in a mapping.
func checkMap(n *node, m *source.Mapping) error {
	name, field := m.Keyspace, "map.keyspace"
	if m.User != "" {
		name, field = kinds.KeyspaceUnread, "map.user"
	}
	if strings.HasPrefix(name, "$") {
		return nil
	}
	ks := n.Keyspace(name)
	if ks == nil {
		var all []string
		for _, other := range n.Keyspaces() {
			if other.Kind == kinds.Counters {
				all = append(all, other.Name)
			}
		}
		return &errs.ArgumentError{Field: field, Problem: fmt.Sprintf("no such keyspace: %q; there are %s", name, strings.Join(all, ", "))}
	}
	if ks.Kind != kinds.Counters && ks.Kind != kinds.Unread {
		return &errs.ArgumentError{Field: field, Problem: fmt.Sprintf("keyspace %s is neither of counters nor of unread numbers", name)}
	}
	if !strings.HasPrefix(m.Column, "$") && ks.Column(m.Column) < 0 {
		columns := slices.DeleteFunc(slices.Clone(ks.Columns), func(column string) bool { return column == "" }) // dropped columns have no name
		return &errs.ArgumentError{Field: "map.column", Problem: fmt.Sprintf("no such column: %q; keyspace %s has %s", m.Column, name, strings.Join(columns, ", "))}
	}
	return nil
}

// checkLetters checks that the queue of the dead letters exists, if the broker is a
// source.LetterQueue.
func (s *Sources) checkLetters(ctx context.Context, cfg *source.Config) error {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	broker, err := s.connectCall(ctx, cfg)
	if err != nil {
		return nil //nolint:nilerr // the state of the source will show the error
	}
	defer broker.Close()
	queue, is := broker.(source.LetterQueue)
	if !is {
		return nil
	}
	var missing *source.StalledError
	if errors.As(queue.CheckLetters(ctx), &missing) {
		return &errs.ArgumentError{Field: "dead-letters", Problem: missing.Reason}
	}
	return nil
}
