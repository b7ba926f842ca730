package redisimport

// namesMax bounds the names in a Names: a hash with ids as fields may have any number of
// them.
const namesMax = 1000

// Names counts names of keys and fields, up to namesMax names.
type Names map[string]int64

// add adds times to the count of a name. The map must not be nil.
func (n Names) add(name string, times int64) {
	if _, ok := n[name]; ok || len(n) < namesMax {
		n[name] += times
	}
}

// merge adds all of other and returns the result.
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
