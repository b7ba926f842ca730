package cluster

import (
	"bytes"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

func key64(b byte, n int) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, n))
}

func TestReadGossipKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	text := "# primary\r\n" + key64(2, 32) + "\r\n\n  " + key64(1, 16) + "\n" + key64(3, 24)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenGossipKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	if keys := k.ring.GetKeys(); len(keys) != 3 || !bytes.Equal(k.ring.GetPrimaryKey(), bytes.Repeat([]byte{2}, 32)) {
		t.Errorf("keys %v, primary %v", keys, k.ring.GetPrimaryKey())
	}
}

func TestRefusedGossipKeys(t *testing.T) {
	var many strings.Builder
	for i := range gossipKeysMax + 1 {
		many.WriteString(key64(byte(i), 16) + "\n")
	}
	for name, tc := range map[string]struct{ text, want string }{
		"empty":            {"", "no key"},
		"comments only":    {"# none\n\n", "no key"},
		"not base64":       {key64(1, 16) + "\nse!cret\n", "line 2 is not base64"},
		"loose base64":     {strings.TrimRight(key64(1, 16), "=") + "\n", "line 1 is not base64"},
		"a short key":      {"\n" + key64(1, 15), "line 2 has 15 bytes"},
		"an odd key":       {key64(1, 20), "line 1 has 20 bytes"},
		"a long key":       {key64(1, 33), "line 1 has 33 bytes"},
		"one key twice":    {key64(1, 16) + "\n" + key64(2, 16) + "\n" + key64(1, 16), "line 3 is line 1 again"},
		"too many keys":    {many.String(), "line 17 is a key more than 16"},
		"too many bytes":   {strings.Repeat("#\n", keyFileBytesMax), "over 65536 bytes"},
		"the key in plain": {strings.Repeat("k", 32) + "!", "line 1 is not base64"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := ReadGossipKeys(path)
			if !errors.Is(err, ErrBadGossipKeys) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want ErrBadGossipKeys with %q", err, tc.want)
			}
			for line := range strings.Lines(tc.text) {
				if line = strings.TrimSpace(line); len(line) > 4 && strings.Contains(err.Error(), line) {
					t.Errorf("error shows a line of the file: %v", err)
				}
			}
		})
	}
	if _, err := ReadGossipKeys(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
}

func FuzzParseGossipKeys(f *testing.F) {
	f.Add([]byte(key64(1, 16) + "\n# x\n" + key64(2, 32)))
	f.Add([]byte("a\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		keys, err := parseGossipKeys(raw)
		if err != nil {
			if !errors.Is(err, ErrBadGossipKeys) {
				t.Fatalf("error %v, want ErrBadGossipKeys", err)
			}
			return
		}
		if ring, err := memberlist.NewKeyring(keys, keys[0]); err != nil || len(ring.GetKeys()) != len(keys) {
			t.Fatalf("%d keys make a ring of %v, %v", len(keys), ring, err)
		}
	})
}
