package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/internal/atomicfile"
)

// gossipKeysFile is the file of the data directory that holds the keys once operators have
// changed them, in the form of a key file.
const gossipKeysFile = "gossip.keys"

// GossipKeys are the keys that encrypt the gossip of this node. The first encrypts what it
// sends, each decrypts what it receives. It is safe for concurrent use.
//
// A change is on disk before it is in use, so that a node which restarts has the keys that
// it had. The keys of a file of --gossip-key-file count until the first change.
type GossipKeys struct {
	path string // of gossipKeysFile

	mu struct {
		sync.Mutex
		keys [][]byte
		ring *memberlist.Keyring // nil until StartGossip
	}
}

// OpenGossipKeys returns the keys of a data directory that operators have changed or, if
// there are none, those of the key file at path; no keys if path is "" too. ignored reports
// that the key file has keys which were not among those used.
func (d *DataDir) OpenGossipKeys(path string) (k *GossipKeys, ignored bool, err error) {
	k = &GossipKeys{path: filepath.Join(d.path, gossipKeysFile)}
	var given [][]byte
	if path != "" {
		if given, err = ReadGossipKeys(path); err != nil {
			return nil, false, err
		}
	}
	k.mu.keys, err = ReadGossipKeys(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.mu.keys = given
	case err != nil:
		return nil, false, err
	default:
		ignored = slices.ContainsFunc(given, func(key []byte) bool { return k.indexLocked(key) < 0 })
	}
	return k, ignored, nil
}

// use returns the ring that memberlist encrypts with, nil without keys.
func (k *GossipKeys) use() (*memberlist.Keyring, error) {
	if k == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	k.mu.ring, err = keyring(k.mu.keys)
	return k.mu.ring, err
}

// Encrypts reports whether there are keys.
func (k *GossipKeys) Encrypts() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.keys) > 0
}

// indexLocked returns the place of a key, or -1.
func (k *GossipKeys) indexLocked(key []byte) int {
	return slices.IndexFunc(k.mu.keys, func(other []byte) bool { return bytes.Equal(other, key) })
}

// Handle answers admin.GossipKeyCall.
func (k *GossipKeys) Handle(_ context.Context, request []byte) ([]byte, error) {
	var change admin.GossipKeyChange
	if err := json.Unmarshal(request, &change); err != nil {
		return nil, fmt.Errorf("cannot read a change of gossip keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	report := admin.GossipKeyReport{Keys: []admin.GossipKey{}}
	if err := k.changeLocked(change); err != nil {
		report.Refused = err.Error()
	}
	for i, key := range k.mu.keys {
		report.Keys = append(report.Keys, admin.GossipKey{ID: admin.GossipKeyID(key), Primary: i == 0})
	}
	return json.Marshal(report)
}

// errNoGossipKey is returned for a key that the node does not have.
var errNoGossipKey = errors.New("the node does not have this key")

// changeLocked makes a change, or returns why not. What it is asked to repeat is no error.
func (k *GossipKeys) changeLocked(change admin.GossipKeyChange) error {
	if change.Action == "" {
		return nil
	}
	if len(k.mu.keys) == 0 || k.mu.ring == nil {
		return errors.New("its gossip is not encrypted: start it with --gossip-key-file")
	}
	at := slices.IndexFunc(k.mu.keys, func(key []byte) bool { return admin.GossipKeyID(key) == change.ID })
	keys := slices.Clone(k.mu.keys)
	switch change.Action {
	case admin.GossipKeyAdd:
		if at >= 0 {
			return nil
		}
		if memberlist.ValidateKey(change.Key) != nil || admin.GossipKeyID(change.Key) != change.ID {
			return errors.New("a key has 16, 24 or 32 bytes")
		}
		if len(keys) == gossipKeysMax {
			return fmt.Errorf("it has %d keys, which is the bound", gossipKeysMax)
		}
		keys = append(keys, change.Key)
	case admin.GossipKeyUse:
		if at < 0 {
			return errNoGossipKey
		}
		keys = slices.Insert(slices.Delete(keys, at, at+1), 0, k.mu.keys[at])
	case admin.GossipKeyRemove:
		if at == 0 {
			return errors.New("it encrypts with this key: use another one first")
		}
		if at < 0 {
			return nil
		}
		keys = slices.Delete(keys, at, at+1)
	default:
		return fmt.Errorf("it knows no action %q", change.Action)
	}
	return k.storeLocked(keys)
}

// storeLocked writes the keys and then uses them.
func (k *GossipKeys) storeLocked(keys [][]byte) error {
	content := []byte("# Keys of gossip, changed by countctl gossip-key. The first encrypts.\n")
	for _, key := range keys {
		content = append(base64.StdEncoding.AppendEncode(content, key), '\n')
	}
	if err := atomicfile.Replace(k.path, content); err != nil { // readable by its owner alone
		return fmt.Errorf("cannot store gossip keys: %w", err)
	}
	before := k.mu.keys
	k.mu.keys = keys
	for _, key := range keys {
		if err := k.mu.ring.AddKey(key); err != nil {
			return fmt.Errorf("cannot use gossip keys: %w", err)
		}
	}
	if err := k.mu.ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("cannot use gossip keys: %w", err)
	}
	for _, key := range before {
		if k.indexLocked(key) < 0 {
			if err := k.mu.ring.RemoveKey(key); err != nil {
				return fmt.Errorf("cannot use gossip keys: %w", err)
			}
		}
	}
	return nil
}
