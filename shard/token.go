package shard

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
)

// GroupIndex is a position in one group's log.
type GroupIndex struct {
	Group uint32
	Index uint64
}

// Token names, for each group that a write touched, the log index that holds
// it. A read that brings it sees the write on any replica. Its text form is
// base64url without padding of: version byte 1, then group and index of each
// element as uvarints.
type Token []GroupIndex

const (
	tokenVersion     = 1
	tokenElementsMax = 1024 // no request touches more groups
)

// ErrBadToken is returned for a token that this node could not have made.
var ErrBadToken = errors.New("not a token of a countd write")

// AppendText appends the token's text form to dst.
func (t Token) AppendText(dst []byte) []byte {
	var stack [256]byte
	raw := append(stack[:0], tokenVersion)
	for _, e := range t {
		raw = binary.AppendUvarint(raw, uint64(e.Group))
		raw = binary.AppendUvarint(raw, e.Index)
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw)
}

// ParseToken reads a token's text form, exactly as AppendText makes it. It never
// returns a token with one group twice, nor with an index of 0.
func ParseToken(text []byte) (Token, error) {
	raw, err := base64.RawURLEncoding.Strict().AppendDecode(nil, text)
	if err != nil || len(raw) == 0 || raw[0] != tokenVersion {
		return nil, ErrBadToken
	}
	raw = raw[1:]
	var t Token
	for len(raw) > 0 {
		group, n := binary.Uvarint(raw)
		if n <= 0 || group > 1<<32-1 || len(t) == tokenElementsMax {
			return nil, ErrBadToken
		}
		index, m := binary.Uvarint(raw[n:])
		// No write has index 0, and Index tells an absent group by it.
		if m <= 0 || index == 0 || t.Index(uint32(group)) != 0 {
			return nil, ErrBadToken
		}
		t = append(t, GroupIndex{uint32(group), index})
		raw = raw[n+m:]
	}
	// Base64 passes line breaks over and uvarints can be longer than need be.
	if !bytes.Equal(t.AppendText(nil), text) {
		return nil, ErrBadToken
	}
	return t, nil
}

// Index returns the index that the token names for a group, or 0.
func (t Token) Index(group uint32) uint64 {
	for _, e := range t {
		if e.Group == group {
			return e.Index
		}
	}
	return 0
}
