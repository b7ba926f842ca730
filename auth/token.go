package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"

	"github.com/countd/countd/raftfsm/catalog"
)

const tokenSecretBytes = 32

// newToken returns the text of a token with a new secret,
//
//	ctd_k3_ 64 hexadecimal digits
//
// and the hash that the catalog stores.
func newToken(number uint64) (text, hash string) {
	var secret [tokenSecretBytes]byte
	_, _ = rand.Read(secret[:]) // never fails
	text = TokenPrefix + catalog.TokenID(number) + "_" + hex.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(text))
	return text, hex.EncodeToString(sum[:])
}

// idOf returns the id in a token's text, or nil if the text is not a token's.
func idOf(token []byte) []byte {
	rest, ok := bytes.CutPrefix(token, []byte(TokenPrefix))
	if !ok {
		return nil
	}
	id, secret, ok := bytes.Cut(rest, []byte("_"))
	if !ok || len(secret) != 2*tokenSecretBytes {
		return nil
	}
	return id
}
