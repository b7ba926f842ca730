package dedup

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// judging is how a shard judges keys after it has split. Its zero value is of a shard that has never
// split. DESIGN.md explains the names.
type judging struct {
	route codec.Route // the shard judges the keys of this route
	names JudgeNames  // nobody changes the slice
}

// JudgeNames are the names of a shard as a judge, the newest first. They are nil if the shard never
// split.
type JudgeNames []judgeName

// At returns the names of a use that the shard accepted at met; see Use.Names.
func (n JudgeNames) At(met int64) (names [1 + earlierMax]uint32) {
	at := slices.IndexFunc(n, func(name judgeName) bool { return name.since < met })
	for i := 0; at >= 0 && i < len(names) && at+i < len(n); i++ {
		names[i] = n[at+i].number
	}
	return names
}

// judgeName is a name of a judge. It is the judge in each use whose Met is above since, unless the
// judge already had a newer name.
type judgeName struct {
	number uint32
	since  int64 // the log time of the split that gave the name; 0 for the first name
}

// Part describes a part of a shard that splits.
type Part struct {
	Route codec.Route
	Judge uint32 // the new name of the part as a judge
}

// split returns how a part judges keys after a split at the log time now. group is the number of the
// shard's group.
func (j *judging) split(group uint32, now int64, part Part) judging {
	names := j.names
	if names == nil {
		names = JudgeNames{{number: group}}
	}
	return judging{route: part.Route, names: append(JudgeNames{{part.Judge, now}}, names...)}
}

// foreign reports whether another shard judges the key, if the key contains no time. It returns false
// if the shard never split: then each section is at its judge.
func (j *judging) foreign(key *[16]byte) bool {
	return j.names != nil && shardOf(key, uint64(j.route.Modulus)) != uint64(j.route.Residue)
}

// of returns the judge and the Met of the use in a record, if the key contains no time. The judge is 0
// if this shard judges the key.
func (j *judging) of(r *keyRecord) (judge uint32, met int64) {
	if r.judge != 0 || !j.foreign(&r.key) {
		return r.judge, r.met
	}
	return j.names.At(r.last)[0], r.last
}

// In a snapshot, judging is a section. It is left out if the shard never split:
//
//	route | number (4) | since (8) …    the newest name first
func (j *judging) appendTo(dst []byte) []byte {
	dst = j.route.AppendTo(dst)
	for _, name := range j.names {
		dst = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(dst, name.number), uint64(name.since))
	}
	return dst
}

func (j *judging) load(section []byte) error {
	route, rest, ok := codec.ParseRoute(section)
	r := wire.Reader{Rest: rest}
	since := int64(math.MaxInt64)
	for len(r.Rest) > 0 {
		name := judgeName{number: r.Fixed32(), since: int64(r.Fixed64())}
		if name.number == 0 || name.since > since {
			r.Fail("a name of the judge")
		}
		j.names, since = append(j.names, name), name.since
	}
	if j.route = route; !ok || since != 0 {
		r.Fail("the names of the judge")
	}
	return ended(&r)
}
