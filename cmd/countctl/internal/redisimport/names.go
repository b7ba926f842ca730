package redisimport

// namesMax bounds the names that a Names holds: a hash whose fields are ids has no end
// of them.
const namesMax = 1000

// Names counts by what keys and fields are called. Those past namesMax are not in it.
type Names map[string]int64

// add counts a name n times. The map must be made.
func (n Names) add(name string, times int64) {
	if _, ok := n[name]; ok || len(n) < namesMax {
		n[name] += times
	}
}

// merge adds all of other and returns what holds both.
func (n Names) merge(other Names) Names {
	if n == nil && len(other) > 0 {
		n = Names{}
	}
	for name, times := range other {
		n.add(name, times)
	}
	return n
}

func (n Names) valid() bool {
	for _, times := range n {
		if times < 0 {
			return false
		}
	}
	return len(n) <= namesMax
}
