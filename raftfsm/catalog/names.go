package catalog

import "github.com/countd/countd/internal/names"

// NameBytesMax bounds the names of keyspaces, columns, channels and dots.
const NameBytesMax = 63

// SourceNameBytesMax bounds the names of sources.
const SourceNameBytesMax = 64

// ValidSourceName reports whether a source may have a name: 1 to SourceNameBytesMax of a-z,
// 0-9, - and _, and a letter or digit first.
func ValidSourceName(name string) bool { return names.IsSlug(name, SourceNameBytesMax) }

// ValidName reports whether a keyspace, column, channel or dot may have a name: 1 to
// NameBytesMax of a-z, 0-9 and _, and a letter first.
func ValidName[T string | []byte](name T) bool { return names.IsWord(name, NameBytesMax) }
