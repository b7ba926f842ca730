package wire

import "strings"

// IsWord reports whether name has 1 to bytesMax bytes of a-z, 0-9 and _, and begins with a letter.
func IsWord[T string | []byte](name T, bytesMax int) bool {
	return fits(name, bytesMax, "_") && isLower(name[0])
}

// IsSlug reports whether name has 1 to bytesMax bytes of a-z, 0-9, _ and -, and begins with a
// letter or digit.
func IsSlug(name string, bytesMax int) bool {
	return fits(name, bytesMax, "_-") && name[0] != '_' && name[0] != '-'
}

// IsLabel reports whether name has 1 to bytesMax bytes of a-z, A-Z, 0-9, ".", _ and -.
func IsLabel[T string | []byte](name T, bytesMax int) bool {
	return fits(name, bytesMax, "_-.ABCDEFGHIJKLMNOPQRSTUVWXYZ")
}

// fits reports whether name has 1 to bytesMax bytes of a-z, 0-9 and others.
func fits[T string | []byte](name T, bytesMax int, others string) bool {
	if len(name) < 1 || len(name) > bytesMax {
		return false
	}
	for i := range len(name) {
		if b := name[i]; !isLower(b) && (b < '0' || b > '9') && strings.IndexByte(others, b) < 0 {
			return false
		}
	}
	return true
}

func isLower(b byte) bool { return b >= 'a' && b <= 'z' }
