// Package mask owns how tokens look in text that is written for people: callers put tokens into
// paths and bodies by mistake, and logs keep those. It never changes what is stored or
// answered.
//
// Invariant: no part of the secret of a token is left.
package mask

import (
	"regexp"
	"strings"
)

// prefix begins every token, which is ctd_<id>_<secret>; package auth makes them.
const prefix = "ctd_"

var token = regexp.MustCompile(prefix + `([0-9A-Za-z]*)_[0-9A-Za-z]+`)

// Tokens returns text with the secrets of tokens left out, also of those that were cut off. The
// id stays: it tells which token to revoke.
func Tokens(text string) string {
	if !strings.Contains(text, prefix) {
		return text
	}
	return token.ReplaceAllString(text, prefix+"${1}_…")
}
