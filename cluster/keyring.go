package cluster

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"
)

const (
	// keyFileBytesMax bounds a key file. A key has at most 44 characters.
	keyFileBytesMax = 64 << 10
	// gossipKeysMax bounds the keys of a file, because memberlist tries every key on a packet that
	// it cannot decrypt. A change of keys needs only two keys.
	gossipKeysMax = 16
)

// ErrBadGossipKeys is returned for a file that is not a valid key file.
var ErrBadGossipKeys = errors.New("not a file of gossip keys: want 16, 24 or 32 bytes in base64 a line, the first encrypts")

// GossipKeys are the keys that encrypt the gossip of this node. The node encrypts with the first
// key of the file, and decrypts with any key of the file.
type GossipKeys struct {
	path string
	ring *memberlist.Keyring // memberlist reads it concurrently
}

// OpenGossipKeys returns the keys of a key file.
func OpenGossipKeys(path string) (*GossipKeys, error) {
	keys, err := ReadGossipKeys(path)
	if err != nil {
		return nil, err
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("cannot use gossip keys: %w", err)
	}
	return &GossipKeys{path, ring}, nil
}

// Reload reads the key file again and uses its keys. After an error it keeps the previous keys. A
// change of keys has three steps: add the new key after the others, move the new key to the first
// line, and remove the former key. All nodes must finish a step before the next begins. Reload
// refuses a file that skips a step, because nodes two steps apart could not decrypt each other's
// gossip. Only one goroutine at a time may call Reload.
func (k *GossipKeys) Reload() error {
	keys, err := ReadGossipKeys(k.path)
	if err != nil {
		return err
	}
	before := slices.Clone(k.ring.GetKeys()) // copy, because RemoveKey writes to the slice
	if !hasKey(before, keys[0]) {
		return fmt.Errorf("cannot use gossip keys of %q: %w: the first key is new here; put it last, on every node", k.path, ErrGossipKeyStep)
	}
	if !hasKey(keys, before[0]) {
		return fmt.Errorf("cannot use gossip keys of %q: %w: the key that this node encrypts with is missing; put it last, on every node", k.path, ErrGossipKeyStep)
	}
	for _, key := range keys {
		err = errors.Join(err, k.ring.AddKey(key))
	}
	err = errors.Join(err, k.ring.UseKey(keys[0]))
	for _, key := range before {
		if !hasKey(keys, key) {
			err = errors.Join(err, k.ring.RemoveKey(key))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot use gossip keys: %w", err)
	}
	return nil
}

// ErrGossipKeyStep is returned by Reload for a file that skips a step.
var ErrGossipKeyStep = errors.New("a change of keys skips a step")

func hasKey(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(other []byte) bool { return bytes.Equal(other, key) })
}

// ReadGossipKeys reads a file of gossip keys: AES keys of 16, 24 or 32 bytes in base64, one
// a line, at most 16. It skips empty lines and lines that begin with #. Errors name the line
// and never contain a key.
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

// parseGossipKeys parses the content of a key file. Every error is ErrBadGossipKeys.
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
