package rankings

// Split adds to the empty lists of each part the gains of the part's keys. Equal lists have equal
// parts. The lists themselves stay unchanged.
//
// A part keeps all bounds and doubts, so the invariant of the package holds for its keys. A set of the
// open bucket cannot lose a cell and keep its bound. So Split closes that bucket in the parts, and each
// part opens another one with the same number. Both become one bucket when their time ends.
func (h *HotLists) Split(partOf func(key uint64) int, parts []*HotLists) {
	from := h.Capture().lists
	if b := from.open.close(from.tick); len(b.packed) > 0 {
		from.add(0, b)
	}
	for i := range parts {
		parts[i].mu.Lock()
		defer parts[i].mu.Unlock()
		parts[i].mu.tick = from.tick
	}
	for level, closed := range from.closed {
		for _, b := range closed {
			for part, of := range b.split(partOf, len(parts)) {
				if to := &parts[part].mu.closed[level]; len(of.packed) > 0 {
					*to = append(*to, of)
				}
			}
		}
	}
}

// split returns the bucket of each part: its cells are those of the part's keys.
func (b *bucket) split(partOf func(key uint64) int, parts int) []bucket {
	sums, split := make([]summary, parts), make([]bucket, parts)
	for number, c := range b.columns {
		for part := range sums {
			sums[part][number].bound = c.bound
		}
		for len(c.cells) > 0 {
			of := c.next()
			to := &sums[partOf(of.key)][number].cells
			*to = append(*to, of)
		}
	}
	for part := range sums {
		split[part] = sums[part].pack(b.number)
	}
	return split
}

// Split adds the candidates of each part's keys to the empty lists of the part, with the places of the
// lists. The table of a part must have the rows of its keys, and no entry may be applied meanwhile. A
// column whose scan has not ended has no list in the parts.
//
// The invariant holds in a part: each row before the place is a candidate here, or its rise was in
// table.Rises. Split takes these rises first. Before the next entry, the table of the part watches the place.
func (l *LargestLists) Split(partOf func(key uint64) int, parts []*LargestLists) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	l.takeRisesLocked()
	for column, of := range l.mu.columns {
		if of == nil || !of.scanned() {
			continue
		}
		lists := make([]*list, len(parts))
		for i, part := range parts {
			lists[i] = &list{column: of.column, done: of.done, place: of.place, known: map[uint64]int64{}}
			part.mu.Lock()
			part.mu.columns[column] = lists[i]
			part.mu.Unlock()
			part.table.Rises.Watch(of.column, of.place)
		}
		for key, count := range of.known {
			lists[partOf(key)].known[key] = count
		}
	}
}
