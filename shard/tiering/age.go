package tiering

import (
	"sync"
	"time"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/names"
)

// This file tells how old rows are: by the time in their ids or, if ids are texts, by when their numbers
// were given.

const (
	// ageFresh is the time after which a node asks again which numbers are old; a shorter age shortens it.
	// A later answer makes rows leave memory later.
	ageFresh = time.Minute
	// ageTimeout bounds the wait for an answer, because Run moves no rows meanwhile.
	ageTimeout = time.Second
	// agesMax bounds the answers that a node keeps: two for each keyspace of names, and one for each
	// age that an operator orders.
	agesMax = 4096
)

// ages holds for keyspaces of names which numbers are old.
//
// An answer stays true for ever, because numbers only grow older. So ages keeps it if the next one
// fails.
type ages struct {
	asking sync.Mutex // held while one replica is asked

	mu struct {
		sync.Mutex
		known map[agedGroup]knownAge
	}
}

// agedGroup is an age, and the group of a keyspace of names: a later keyspace of the same name has
// another one.
type agedGroup struct {
	group uint32
	age   time.Duration
}

// knownAge says that all numbers below young had the age at the time asked.
type knownAge struct {
	asked time.Time
	young uint64
}

func (a *ages) of(key agedGroup) knownAge {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.known[key]
}

func (a *ages) set(key agedGroup, known knownAge) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.known == nil || len(a.mu.known) >= agesMax {
		a.mu.known = map[agedGroup]knownAge{}
	}
	a.mu.known[key] = known
}

// namesOf returns the keyspace that gives the ids of a shard their numbers, and its group; "" if ids are
// no texts, or are users: a user is no less active for being old, so only a layout gives rows of users an age.
func (t *Tiering) namesOf(s *Shard) (name string, group uint32) {
	view := t.cfg.Catalog.View()
	name = view.Keyspaces[s.Keyspace].Names
	of, there := view.Keyspaces[name]
	if name == "" || !there || s.Keyspace == kinds.KeyspaceUsers {
		return "", 0
	}
	return name, of.FirstGroup()
}

// layout returns the layout of the ids of a shard. Texts have none.
func (t *Tiering) layout(s *Shard) IDLayout {
	if name, _ := t.namesOf(s); name != "" {
		return IDLayout{}
	}
	return t.cfg.Cold.Layouts[s.Keyspace]
}

// hasAge reports whether the age of a shard's rows can be known.
func (t *Tiering) hasAge(s *Shard) bool {
	name, _ := t.namesOf(s)
	return name != "" || t.cfg.Cold.Layouts[s.Keyspace].Unit > 0
}

// learn asks a replica of names which numbers have an age, unless the last answer is fresh. If none
// answers, the last answer remains.
func (t *Tiering) learn(s *Shard, age time.Duration) {
	name, group := t.namesOf(s)
	if name == "" {
		return
	}
	key := agedGroup{group, age}
	t.ages.asking.Lock()
	defer t.ages.asking.Unlock()
	known, now := t.ages.of(key), time.Now()
	if now.Sub(known.asked) < min(ageFresh, age) {
		return
	}
	q := names.AgeQuery{Until: max(0, now.Add(-age).UnixMilli())}
	err := t.cfg.Read(name, &q, now.Add(ageTimeout))
	if known.asked = time.Now(); err != nil {
		t.limited.Warn("rows stay in memory, and it is tried again", "group", group, "err", err)
	} else {
		known.young = q.Young
	}
	t.ages.set(key, known)
}

// old returns a function that reports whether all ids of a range of keys of a shard are older than age.
// It may wait for ageTimeout.
func (t *Tiering) old(s *Shard, age time.Duration) func(first, last uint64) bool {
	t.learn(s, age)
	return t.knownOld(s, age)
}

// knownOld is old without a wait: it calls no number old that learn does not know to be.
func (t *Tiering) knownOld(s *Shard, age time.Duration) func(first, last uint64) bool {
	name, group := t.namesOf(s)
	if name == "" {
		return t.layout(s).old(time.Now(), age, s.PerKey)
	}
	young := t.ages.of(agedGroup{group, age}).young / s.PerKey
	return func(_, last uint64) bool { return last < young }
}
