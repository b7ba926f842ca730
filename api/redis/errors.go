package redis

import (
	"context"
	"errors"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
)

// partly is the error of a command that wrote only some of its keys.
type partly struct{ err error }

func (e *partly) Error() string { return e.err.Error() }
func (e *partly) Unwrap() error { return e.err }

// backendErrors maps the Backend's errors to the first words of replies. Clients may rely on the
// first word, which is the code.
var backendErrors = []struct {
	err  error
	text string
}{
	{errForgotten, "UNKNOWN "},
	{errs.ErrOutcomeUnknown, "UNKNOWN "},
	{errs.ErrConflict, "CONFLICT "},
	{errs.ErrKeyAhead, "EXPIRED "},
	{errs.ErrExpired, "EXPIRED "},
	{errs.ErrMemoryFull, "OOM command not allowed: a new row needs memory, and "},
	{errs.ErrDiskFull, "DISKFULL "},
	{errs.ErrDraining, "DRAINING "},
	{errs.ErrTooLate, "OVERLOADED "},
	{errs.ErrOverloaded, "OVERLOADED "},
	{errs.ErrCrossShard, errCrossSlot},
	{errs.ErrNoLeader, "LEADERLESS "},
	{errs.ErrNoQuorum, "LEADERLESS "},
	{context.DeadlineExceeded, "LEADERLESS "}, // for a read that no node answered in time
	{inbox.ErrNoNotice, "ERR "},
	{inbox.ErrNoGroup, "ERR "},
	{inbox.ErrPostsOverflow, "ERR "},
	{errs.ErrUnknownKeyspace, "ERR "},
	{errs.ErrBadToken, "LEADERLESS "}, // for a scan after the cluster was restored to a state before this node's writes
}

// errorText returns the text of an error for the client. It returns false for an unexpected error,
// whose text the client must not see.
func errorText(err error) (text string, foreseen bool) {
	if some, ok := errors.AsType[*partly](err); ok {
		text, foreseen = errorText(some.err)
		return "UNKNOWN some of the keys were written, others were not: " + text, foreseen
	}
	if coded, ok := errors.AsType[resp.Error](err); ok {
		return coded.Error(), true
	}
	if argument, ok := errors.AsType[*errs.ArgumentError](err); ok {
		return resp.FieldError(argument.Field, argument.Problem).Error(), true
	}
	if limit, ok := errors.AsType[*errs.LimitError](err); ok {
		return "OOM command not allowed: a new row is needed, and " + limit.Text, true
	}
	for _, b := range backendErrors {
		if !errors.Is(err, b.err) {
			continue
		}
		if b.text[len(b.text)-1] != ' ' {
			return b.text, true
		}
		return b.text + b.err.Error(), true
	}
	return "ERR the server failed; its log says why", false
}

const errCrossSlot = "CROSSSLOT Keys in request don't hash to the same slot"

const errNoKeyspaces = resp.Error("LEADERLESS this node does not know its cluster's keyspaces yet")

const errWrongType = resp.Error("WRONGTYPE Operation against a key holding the wrong kind of value")

// nameError is an error about a keyspace or column that this node does not know. Another node may
// have just created it.
type nameError string

// unknown returns the error for an unknown name. Nothing can have an invalid name, so the error for
// an invalid name causes no lookup.
func unknown(name []byte, problem string) error {
	if catalog.ValidName(name) { // the rule for keyspaces and columns is the same as for channels
		return nameError(problem)
	}
	return resp.ArgumentError(problem)
}

func (e nameError) Error() string { return "ERR " + string(e) }

// errForgotten is returned for an op of a repeated request, if the shard no longer remembers
// whether it applied or refused the op.
var errForgotten = errors.New("whether this op was applied or overflowed before is no longer known")
