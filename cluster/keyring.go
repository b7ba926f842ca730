package cluster

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/memberlist"
)

const (
	// keyFileBytesMax bounds a key file; one line has at most 44 characters.
	keyFileBytesMax = 64 << 10
	// gossipKeysMax bounds the keys of a file. A packet under an unknown key is
	// tried with each, and a change of keys needs two.
	gossipKeysMax = 16
)

// ErrBadGossipKeys is returned for a file that is not a valid key file.
var ErrBadGossipKeys = errors.New("not a file of gossip keys: want 16, 24 or 32 bytes in base64 a line, the first encrypts")

// ReadGossipKeys reads a file of gossip keys: AES keys of 16, 24 or 32 bytes in base64, one
// a line, at most 16. It skips empty lines and lines that begin with #. The first key
// encrypts what this node sends; any of them decrypts what it receives. To change keys
// without a stop, add the new one last on every node, then move it to the first line on
// every node, then remove the old one. Errors name the line and never contain a key.
func ReadGossipKeys(path string) ([][]byte, error) {
	raw, err := readBounded(path, keyFileBytesMax)
	if err != nil {
		return nil, fmt.Errorf("cannot read gossip keys: %w", err)
	}
	keys, err := parseGossipKeys(raw)
	if err != nil {
		return nil, fmt.Errorf("cannot read gossip keys of %q: %w", path, err)
	}
	return keys, nil
}

// parseGossipKeys reads the content of a key file. Every error is
// ErrBadGossipKeys.
func parseGossipKeys(raw []byte) ([][]byte, error) {
	if len(raw) > keyFileBytesMax {
		return nil, fmt.Errorf("over %d bytes: %w", keyFileBytesMax, ErrBadGossipKeys)
	}
	var keys [][]byte
	seen := map[string]int{}
	number := 0
	for line := range strings.Lines(string(raw)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.Strict().DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("line %d is not base64: %w", number, ErrBadGossipKeys)
		}
		if memberlist.ValidateKey(key) != nil {
			return nil, fmt.Errorf("line %d has %d bytes: %w", number, len(key), ErrBadGossipKeys)
		}
		if before := seen[string(key)]; before > 0 {
			return nil, fmt.Errorf("line %d is line %d again: %w", number, before, ErrBadGossipKeys)
		}
		if len(keys) == gossipKeysMax {
			return nil, fmt.Errorf("line %d is a key more than %d: %w", number, gossipKeysMax, ErrBadGossipKeys)
		}
		seen[string(key)] = number
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("no key in it: %w", ErrBadGossipKeys)
	}
	return keys, nil
}

// keyring returns the keys as memberlist takes them; no keys mean no encryption.
func keyring(keys [][]byte) (*memberlist.Keyring, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("cannot use gossip keys: %w", err)
	}
	return ring, nil
}
