package api

import (
	"context"
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// errNoCluster is returned while this node knows no keyspace. Every cluster has at least one.
var errNoCluster = fmt.Errorf("%w: this node does not know its cluster yet", errs.ErrNoLeader)

func (r *request) findKeyspace() (err error) {
	if r.keyspace, err = r.lookUp(string(r.name)); err != nil {
		return err
	}
	if r.keyspace == nil || r.keyspace.Kind != kinds.Counters {
		message := errs.ErrUnknownKeyspace.Error()
		if r.keyspace != nil && r.takes&takesColumn != 0 {
			message = noMembersIn(r.keyspace)
			if r.takes&takesRanking != 0 {
				message = noRankingOf(r.keyspace)
			}
		}
		return &fault{status: fasthttp.StatusNotFound, code: codeUnknownKeyspace, message: message}
	}
	return nil
}

// lookUp returns the keyspace with a name, or nil if no keyspace has that name.
func (r *request) lookUp(name string) (*shard.Keyspace, error) {
	ks := r.backend.Keyspace(name)
	switch {
	case ks != nil || r.caughtUp:
		return ks, nil
	case len(r.backend.Keyspaces()) == 0:
		return nil, errNoCluster
	}
	err := r.catchUp()
	return r.backend.Keyspace(name), err
}

// catchUp waits for the newest keyspaces and columns, at most once per request. Another node may
// have just created a name that this node does not know.
func (r *request) catchUp() error {
	ctx, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	err := r.backend.CatchUp(ctx)
	r.caughtUp = err == nil
	return err
}

// findColumn sets r.sets.column to the number of the column in the path.
func (r *request) findColumn() error {
	r.sets.column = r.columnNumber(r.column)
	if r.cursor.Err != nil {
		return r.cursor.fault()
	}
	if r.sets.column < 0 {
		return invalid("column", noColumnOf(r.keyspace))
	}
	return nil
}

// findUnread sets the request's keyspace to the keyspace of unread numbers.
func (r *request) findUnread() error {
	r.keyspace = r.backend.Keyspace(kinds.KeyspaceUnread)
	if r.keyspace == nil { // every cluster has this keyspace
		return errNoCluster
	}
	return nil
}

// noRankingOf returns the reason why an existing keyspace has no ranking.
func noRankingOf(ks *shard.Keyspace) string {
	return fmt.Sprintf("keyspace %s has no ranking: only keyspaces of counters have", ks.Name)
}

// noMembersIn returns the problem of a keyspace whose kind has no members.
func noMembersIn(ks *shard.Keyspace) string {
	return fmt.Sprintf("keyspace %s has no members: only keyspaces of counters have", ks.Name)
}

// columnNumber returns the number of a column of the request's keyspace, or -1 if there is no
// such column.
func (r *request) columnNumber(name []byte) int {
	column := r.keyspace.ColumnOf(name)
	if column < 0 && r.cursor.Err == nil {
		var err error
		if column, err = r.columnIn(&r.keyspace, name); err != nil {
			r.cursor.stop(err)
		}
	}
	return column
}

// columnIn returns the number of a column of ks, or -1 if there is no such column. If this node
// does not know the column, columnIn first waits for the newest catalog and updates ks.
func (r *request) columnIn(ks **shard.Keyspace, name []byte) (int, error) {
	was := *ks
	if column := was.ColumnOf(name); column >= 0 || r.caughtUp {
		return column, nil
	}
	if err := r.catchUp(); err != nil {
		return -1, err
	}
	if *ks = r.backend.Keyspace(was.Name); !was.Same(*ks) {
		return -1, errs.ErrUnknownKeyspace // the columns parsed so far have numbers of a keyspace that was replaced
	}
	return (*ks).ColumnOf(name), nil
}
