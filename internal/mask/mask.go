// Package mask removes the secrets of tokens from logs: callers put tokens into paths and bodies
// by mistake, and logs keep those. It never changes stored data or answers.
//
// Invariant: no part of the secret of a token remains.
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
