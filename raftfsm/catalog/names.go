package catalog

import "github.com/countd/countd/internal/wire"

// NameBytesMax bounds the names of keyspaces, columns, channels and dots.
const NameBytesMax = 63

// SourceNameBytesMax bounds the names of sources.
const SourceNameBytesMax = 64

// ValidSourceName reports whether a name is valid for a source: 1 to SourceNameBytesMax of
// a-z, 0-9, - and _, beginning with a letter or digit.
func ValidSourceName(name string) bool { return wire.IsSlug(name, SourceNameBytesMax) }

// ValidName reports whether a name is valid for a keyspace, column, channel or dot: 1
// to NameBytesMax of a-z, 0-9 and _, beginning with a letter.
func ValidName[T string | []byte](name T) bool { return wire.IsWord(name, NameBytesMax) }
