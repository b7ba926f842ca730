package audit

import (
	"regexp"
	"strings"
)

// TokenPrefix begins every token, which is ctd_<id>_<secret>; package auth makes them.
const TokenPrefix = "ctd_"

var token = regexp.MustCompile(TokenPrefix + `([0-9A-Za-z]*)_[0-9A-Za-z]+`)

// MaskTokens returns text without the secrets of tokens, which callers put into paths and bodies by
// mistake, and logs keep. It removes secrets that were cut off, too. The id of a token stays: an
// operator needs it to revoke the token.
func MaskTokens(text string) string {
	if !strings.Contains(text, TokenPrefix) {
		return text
	}
	return token.ReplaceAllString(text, TokenPrefix+"${1}_…")
}
