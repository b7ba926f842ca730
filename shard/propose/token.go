package propose

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"github.com/countd/countd/shard/errs"
)

// GroupIndex is a position in one group's log.
type GroupIndex struct {
	Group uint32
	Index uint64
}

// Token has the log index of a write in each group that the write changed. A read with the token
// sees the write on any replica. The text form of a token is these bytes in base64url without
// padding:
//
//	version 1 (1 byte) | Cluster (4, little endian) | group, index (uvarint each) of each element
type Token struct {
	Cluster uint32 // a hash of the cluster's id, because an index in another cluster's log has no meaning
	At      []GroupIndex
}

const (
	tokenVersion     = 1
	tokenHeadBytes   = 5
	tokenElementsMax = 1024 // no request changes more groups
)

// AppendText appends the token's text form to dst.
func (t Token) AppendText(dst []byte) []byte {
	var stack [256]byte
	raw := binary.LittleEndian.AppendUint32(append(stack[:0], tokenVersion), t.Cluster)
	for _, e := range t.At {
		raw = binary.AppendUvarint(raw, uint64(e.Group))
		raw = binary.AppendUvarint(raw, e.Index)
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw)
}

// ParseToken parses the output of AppendText, and accepts no other spelling. It never returns a
// token with the same group twice, or with an index of 0.
func ParseToken(text []byte) (Token, error) {
	raw, err := base64.RawURLEncoding.Strict().AppendDecode(nil, text)
	if err != nil || len(raw) < tokenHeadBytes || raw[0] != tokenVersion {
		return Token{}, errs.ErrBadToken
	}
	t := Token{Cluster: binary.LittleEndian.Uint32(raw[1:])}
	for raw = raw[tokenHeadBytes:]; len(raw) > 0; {
		group, n := binary.Uvarint(raw)
		if n <= 0 || group > 1<<32-1 || len(t.At) == tokenElementsMax {
			return Token{}, errs.ErrBadToken
		}
		index, m := binary.Uvarint(raw[n:])
		// If Index does not return 0, t already has the group.
		if m <= 0 || index == 0 || t.Index(uint32(group)) != 0 {
			return Token{}, errs.ErrBadToken
		}
		t.At = append(t.At, GroupIndex{uint32(group), index})
		raw = raw[n+m:]
	}
	// Refuse other spellings: base64 ignores line breaks, and a uvarint may be longer than
	// necessary.
	if !bytes.Equal(t.AppendText(nil), text) {
		return Token{}, errs.ErrBadToken
	}
	return t, nil
}

// Index returns the index of the write in a group, or 0.
func (t Token) Index(group uint32) uint64 {
	for _, e := range t.At {
		if e.Group == group {
			return e.Index
		}
	}
	return 0
}
