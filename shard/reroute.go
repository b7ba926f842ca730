package shard

import (
	"slices"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// This file routes parts of a write anew, after their shards have split. GROWTH.md explains why that
// counts each op once.

// divisible reports whether the ops of a part may be routed anew. The section of a source goes back to
// its reader, and a write of a restore fails.
func (w *Write) divisible(s int) bool { return w.sectionOf(s) == nil && !w.ID.Restores() }

// noteSplit records that the part must be routed anew, if the error of a try shows that its shard has split, or if
// the attempt that made the shard was abandoned. If the part is not divisible, noteSplit settles it, and notes the
// split for the caller's next write.
func (wr *writer) noteSplit(ps *parts, s int, err error, divisible bool) {
	p := &ps.byShard[s]
	modulus, abandoned := rpc.ModulusOf(err), wr.registry.shardOf(p.group.number) == nil
	if modulus <= p.route.Modulus && !abandoned {
		return
	}
	if p.modulus, p.abandoned = modulus, abandoned; !divisible {
		p.settled = true
		wr.registry.noteSplit(ps.spaces[p.space].ks.FirstGroup, int(p.route.Residue), modulus)
	}
}

// reroute puts the ops of parts whose shards have split into new parts, by the present route. The new
// parts have the ops under their numbers, and inherit that the outcome of a try is unknown. reroute
// returns false if this node knows no new route yet. It does not wait for the catalog, because
// other parts may wait for another try.
func (wr *writer) reroute(ps *parts, w *Write, judging bool) bool {
	noted := false
	for s := range ps.byShard {
		switch p := &ps.byShard[s]; {
		case !p.open(judging):
		case p.abandoned:
			noted = true
		case p.modulus > 0 && wr.registry.noteSplit(ps.spaces[p.space].ks.FirstGroup, int(p.route.Residue), p.modulus):
			p.modulus, noted = 0, true
		}
	}
	if !noted {
		return false
	}
	was := len(ps.byShard)
	if err := wr.layOut(ps, w); err != nil {
		ps.byShard = ps.byShard[:was]
		return false
	}
	for s := range was {
		p := &ps.byShard[s]
		if p.open(false) && w.divisible(s) && (p.abandoned || p.route != ps.spaces[p.space].route.Of(int(p.route.Residue))) {
			p.cancel()
			ps.move(w, s)
		}
	}
	ps.separate(w)
	err := wr.admit(ps, w)
	ps.encode(w)
	for s := ps.base; s < len(ps.byShard); s++ {
		p := &ps.byShard[s]
		if !p.used {
			continue
		}
		refused := err
		if refused == nil {
			refused = p.reserve(w)
		}
		if refused == nil {
			continue
		}
		p.err, p.settled = p.fate(refused), true
		if judging && !ps.byShard[ps.judge].unknown { // nothing is applied yet, so the whole write is refused
			ps.byShard[ps.judge].err, ps.byShard[ps.judge].settled = refused, true
		}
	}
	return true
}

// move puts the ops of a part into the parts of the present shards.
func (ps *parts) move(w *Write, s int) {
	was := &ps.byShard[s]
	for _, i := range was.ops {
		p := &ps.byShard[ps.base+ps.slot(w, i)]
		p.ops, p.unknown, p.err = append(p.ops, i), was.unknown, was.err
	}
	if was.judges {
		p := ps.findJudge(w)
		p.unknown, p.err, ps.moved = was.unknown, was.err, true
	}
	was.used, was.judges, was.ops = false, false, nil
}

// separate gives an error to ops of present shards that must be applied together but are on several
// shards.
func (ps *parts) separate(w *Write) {
	for _, whole := range w.Whole {
		if !ps.crosses(w, whole) {
			continue
		}
		apart := part{settled: true, unknown: w.ID.Exists()} // an earlier call may have been applied before the split
		for s := ps.base; s < len(ps.byShard); s++ {
			if p := &ps.byShard[s]; !p.settled {
				p.ops = slices.DeleteFunc(p.ops, func(i int) bool {
					is := i >= whole[0] && i < whole[1]
					if is {
						apart.ops = append(apart.ops, i)
					}
					return is
				})
			}
		}
		if apart.err = apart.fate(errs.ErrCrossShard); len(apart.ops) > 0 {
			slices.Sort(apart.ops)
			ps.byShard = append(ps.byShard, apart)
		}
	}
}

// severalIDs reports whether the ops of a range are on several ids.
func (w *Write) severalIDs(whole [2]int) bool {
	for i := whole[0] + 1; i < whole[1]; i++ {
		if w.Ops.ID(i) != w.Ops.ID(whole[0]) {
			return true
		}
	}
	return false
}

// crosses reports whether ops that must be applied together are on several shards.
func (ps *parts) crosses(w *Write, whole [2]int) bool {
	for i := whole[0] + 1; i < whole[1]; i++ {
		if ps.slot(w, i) != ps.slot(w, whole[0]) {
			return true
		}
	}
	return false
}
