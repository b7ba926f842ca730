package catalog

// NameBytesMax bounds the names of keyspaces, columns, channels and dots.
const NameBytesMax = 63

// SourceNameBytesMax bounds the names of sources.
const SourceNameBytesMax = 64

// ValidSourceName reports whether a source may have a name: 1 to SourceNameBytesMax of a-z,
// 0-9, - and _, and a letter or digit first.
func ValidSourceName(name string) bool {
	if len(name) < 1 || len(name) > SourceNameBytesMax {
		return false
	}
	for i := range len(name) {
		b := name[i]
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && (i == 0 || b != '_' && b != '-') {
			return false
		}
	}
	return true
}

// ValidName reports whether a keyspace, column, channel or dot may have a name: 1 to
// NameBytesMax of a-z, 0-9 and _, and a letter first.
func ValidName[T string | []byte](name T) bool {
	if len(name) < 1 || len(name) > NameBytesMax || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for i := range len(name) {
		if b := name[i]; (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '_' {
			return false
		}
	}
	return true
}
