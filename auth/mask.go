package auth

import (
	"regexp"
	"strings"
)

// TokenPrefix begins every token, which is ctd_<id>_<secret>; package auth makes them.
const TokenPrefix = "ctd_"

var token = regexp.MustCompile(TokenPrefix + `([0-9A-Za-z]*)_[0-9A-Za-z]+`)

// MaskTokens returns text without the secrets of tokens. Callers put tokens into paths and bodies
// by mistake, and logs would keep them. MaskTokens also removes secrets that were cut off. It keeps
// the id of a token, because an operator needs the id to revoke the token.
func MaskTokens(text string) string {
	if !strings.Contains(text, TokenPrefix) {
		return text
	}
	return token.ReplaceAllString(text, TokenPrefix+"${1}_…")
}
