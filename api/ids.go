package api

import (
	"errors"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// errUnnamed is returned by a handler whose request has text ids that are not in memory. The server
// then looks them up, and runs the handler again. See names.Slots.
var errUnnamed = errors.New("ids must be looked up")

// named returns errUnnamed if ids must be looked up. A handler calls it when it has found the
// request good, and before it calls the backend.
func named(ids *names.Slots) error {
	if !ids.Complete() {
		return errUnnamed
	}
	return nil
}

// name looks up the ids of a request that are not in memory, and makes the request ready to be
// decoded again. Where a write only removes, ids get no number, and it removes nothing from row 0.
func name(r *request) (err error) {
	if r.takes&takesWrite != 0 {
		for i := 0; r.texts.Seeks && i < len(r.cellEnds); i++ {
			if r.ops[i].Kind != engine.OpLeave {
				r.texts.Want(namesOf(keyspaceOf(&r.write, r.keyspace, i)), opSlot+2*i)
				r.texts.Want(r.sets.users, memberSlot+2*i)
			}
		}
		err = r.texts.Assign(&r.write)
	} else {
		err = r.texts.Find(&r.read)
	}
	if path := r.texts.Text(pathSlot); path != nil && err == nil {
		r.id, _ = r.texts.Parse(pathSpace(r), pathSlot, path)
	}
	r.ops, r.cells, r.cellEnds = r.ops[:0], r.cells[:0], r.cellEnds[:0]
	r.ids, r.columns = r.ids[:0], r.columns[:0]
	r.write.Spaces, r.write.In = r.write.Spaces[:0], r.write.In[:0]
	return err
}

// pathSpace returns the space of the id in the path.
func pathSpace(r *request) string {
	switch {
	case r.takes&takesNotice != 0:
		return ""
	case r.takes&(takesMember|ofAuthor) != 0:
		return userNames(r)
	}
	return namesOf(r.keyspace)
}

// namesOf returns the space of the ids of a keyspace; "" if they are numbers.
func namesOf(ks *shard.Keyspace) string {
	if ks == nil {
		return ""
	}
	return ks.Names
}

// userNames returns the space of users. Members and authors are users.
func userNames(r *request) string { return namesOf(r.backend.Keyspace(kinds.KeyspaceUsers)) }

// postNames returns the space of posts in outboxes and timelines.
func postNames(r *request) string { return namesOf(r.backend.Keyspace(kinds.KeyspacePosts)) }

// rowTexts returns the texts of ids of the request's keyspace, as Slots.Shown does.
func rowTexts(r *request, ids []uint64) (names.Shown, error) {
	return r.texts.Shown(namesOf(r.keyspace), len(ids), func(i int) uint64 { return ids[i] }, &r.read)
}
