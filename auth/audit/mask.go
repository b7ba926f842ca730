package audit

import (
	"regexp"
	"strings"
)

// tokenPrefix begins every token, which is ctd_<id>_<secret>; package auth makes them.
const tokenPrefix = "ctd_"

var token = regexp.MustCompile(tokenPrefix + `([0-9A-Za-z]*)_[0-9A-Za-z]+`)

// MaskTokens returns text without the secrets of tokens, which callers put into paths and bodies by
// mistake, and logs keep. It removes secrets that were cut off, too. The id of a token stays: an
// operator needs it to revoke the token.
func MaskTokens(text string) string {
	if !strings.Contains(text, tokenPrefix) {
		return text
	}
	return token.ReplaceAllString(text, tokenPrefix+"${1}_…")
}
